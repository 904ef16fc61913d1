"""Check for every YAML file in some folders whether sslengine can run it, and if not, why.

    sslengine check configs                   # names, keys, values; models built
    sslengine check DIR --set config.MODEL.TRUNK.RESNETS.DEPTH=18

A run names its data and its model: it is checked alone. A part has fewer sections
(`+config/...`): it is merged onto the nearest runs that are right, and is right if one of these
combinations is. A file without `config:` belongs to another program; it is listed and skipped.

Each verdict is printed at once. Nothing is computed: models are built on the meta device.
"""

from __future__ import annotations

import argparse
import io
import logging
import re
from collections import Counter
from collections.abc import Sequence
from contextlib import redirect_stderr, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from sslengine.command import arguments as args
from sslengine.command.arguments import Argument
from sslengine.config.compose import compose
from sslengine.config.files import readable_path
from sslengine.config.resolve import Resolved
from sslengine.config.run_folder import open_named
from sslengine.config.sections import read
from sslengine.config.yaml_text import load
from sslengine.errors import SSLEngineError
from sslengine.optim.options import OptimizerOptions
from sslengine.progress import progress
from sslengine.screen_console import LiteralConsole
from sslengine.trust import closed

# Runs that a part is tried with before it counts as wrong.
MOST_BASES = 4
# Sections that only an engine reads that does not train; VISSL names it on the command line.
ENGINE_OF = {
    "SVM": "train_svm",
    "NEAREST_NEIGHBOR": "nearest_neighbor_test",
    "IMG_RETRIEVAL": "instance_retrieval_test",
    "CLUSTERFIT": "cluster_features_and_label",
    "LOW_SHOT_BENCHMARK": "low_shot_test",
    "RANKING": "extract_features",
}
RUN, PART, FOREIGN = "run", "part", "foreign"
ARGUMENTS = (
    Argument("paths", "folders, or files", Path, "DIR", nargs="+"),
    replace(args.VALUES, help="override of every run"),
    Argument("--all", "print files without problems too", bool),
    replace(args.TRUST_CONFIG, help="let the config.yaml of a run run code"),
    replace(args.JSON, help="print all verdicts as one JSON document"),
)


@dataclass(frozen=True)
class File:
    """One YAML file: its config folder, its name in it, and its role."""

    root: Path
    name: str
    role: str

    @property
    def is_run(self) -> bool:
        return self.role == RUN


def main(arguments: Sequence[str]) -> int:
    """Return 0 if every file is right, else 1."""
    parser = args.make_parser(__name__)
    given = parser.parse_args(arguments)
    for path in given.paths:
        if not path.exists():
            parser.error(f"there is no folder or file {path}")
    files = [file for path in given.paths for file in find(path)]
    # The runs that parts may belong to need not be among the files to check.
    roots = dict.fromkeys(file.root for file in files)
    known = dict.fromkeys([*(file for root in roots for file in find(root)), *files])
    right = [file for file in known if file.is_run]
    console = LiteralConsole(width_of_file=140, stderr=given.json)
    found: list[dict[str, Any]] = []
    with progress("checking files", len(files), "files") as step:
        for file in sorted(files, key=lambda each: not each.is_run):  # parts need the right runs
            tried, problem = check_file(file, right, given)
            if problem and file in right:
                right.remove(file)
            verdict = "left out" if file.role == FOREIGN else "wrong" if problem else "right"
            found.append({"file": file.name, "folder": str(file.root), "role": file.role,
                          "verdict": verdict, "problem": problem, "tried_as": tried})  # fmt: skip
            if problem or given.all:
                lines = [*_shorten(problem), f"tried as: {' '.join(tried)}"] if problem else []
                line = f"[{len(found)}/{len(files)}] {verdict:8} {file.role:7} {file.name}"
                console.print(line, *lines, sep="\n      ", soft_wrap=True)
            step(1)
    wrong = [_shorten(each["problem"])[0] for each in found if each["verdict"] == "wrong"]
    for reason, count in Counter(wrong).most_common(10):
        if count > 1:
            console.print(f"{count} times: {reason}", soft_wrap=True)
    states = Counter((each["role"], each["verdict"]) for each in found)
    for (role, state), count in sorted(states.items()):
        console.print(f"{count} {role}{'s' * (count > 1)}: {state}")
    count = sum(each["verdict"] == "right" for each in found)
    console.print(f"{count + len(wrong)} files: {count} right, {len(wrong)} wrong")
    if given.json:
        args.print_document(found)
    return int(bool(wrong))


def _shorten(problem: str) -> list[str]:
    """Return the lines without indented hints; running the file prints the full text."""
    return [line for line in problem.splitlines() if not line.startswith("  ")]


# ---- files and their roles


def find(given: Path) -> list[File]:
    """Return the files of a folder, in which may be folders of configs, or one file."""
    given = given.resolve()
    found = []
    for path in [given] if given.is_file() else sorted(given.rglob("*.yaml")):
        root = config_root(path)
        root = config_root(given) if root == path.parent else root
        name = path.relative_to(_inside(root)).with_suffix("").as_posix()
        found.append(File(root, name, role_of(path, name, root)))
    return found


def config_root(path: Path) -> Path:
    """Return what --config-dir would name: the folder that holds `config/`, as VISSL has it."""
    for parent in (path, *path.parents):
        if parent.name == "config":
            return parent.parent
        if parent.name == "configs":
            return parent
    return path if path.is_dir() else path.parent


def _inside(root: Path) -> Path:
    return root / "config" if (root / "config").is_dir() else root


def role_of(path: Path, name: str, root: Path) -> str:
    """Return the role; an unreadable file of ours is a run, so that its error is reported."""
    text = ""
    try:
        text = path.read_text()
        tree = load(text)
    except (OSError, ValueError, yaml.YAMLError, RecursionError):
        ours = not text or re.search(r"^(# @package|config:)", text, re.MULTILINE)
        return RUN if ours else FOREIGN
    if isinstance(tree, dict) and "defaults" in tree:
        try:
            tree = compose([f"config={name}"], [str(root)]).said()
        except SSLEngineError:
            return RUN
    if not isinstance(tree, dict):
        return RUN
    config = tree.get("config")
    if not isinstance(config, dict):
        return RUN if "config" in tree else FOREIGN
    judges = "engine_name" in tree or not ENGINE_OF.keys().isdisjoint(config)
    whole = {"MODEL"} if judges else {"DATA", "MODEL", "OPTIMIZER"}
    names_data = "IMG_RETRIEVAL" in config or _names_its_data(config.get("DATA"))
    return RUN if whole <= config.keys() and names_data else PART


def _names_its_data(data: Any) -> bool:
    splits = data.values() if isinstance(data, dict) else ()
    return any(isinstance(split, dict) and "DATA_SOURCES" in split for split in splits)


# ---- verdicts


def check_file(
    file: File, right: Sequence[File], given: argparse.Namespace
) -> tuple[tuple[str, ...], str]:
    """Return what the file was tried as, and what is wrong with it; right: runs.

    A part is right if it is with one run. The same error with two runs: the part causes it.
    """
    if file.role == FOREIGN:
        return (), "it has no `config:`: a file of another program"
    found: dict[str, tuple[str, ...]] = {}
    for arguments in compositions(file, right)[:MOST_BASES]:
        problem = find_problem(arguments, file.root, given)
        if not problem:
            return arguments, ""
        if problem in found:
            break
        found[problem] = arguments
    for problem, arguments in found.items():
        return arguments, problem
    return (), "no run was found that this file could belong to, by its place or by `defaults`"


def compositions(file: File, runs: Sequence[File]) -> list[tuple[str, ...]]:
    """List what the file is tried as: alone, or added to the runs that it may belong to.

    A part at the top of the folder is in the `defaults` of such a run, and no argument adds it.
    """
    if file.is_run:
        return [(f"config={file.name}",)]
    names = [run.name for run in runs if run.root == file.root]
    folder, _, last = file.name.rpartition("/")
    if not folder:
        return [(f"config={name}",) for name in names if _is_default_of(name, file)]
    near, place = list[str](), Path(folder)
    while not near:  # those of the nearest parent folder that has any
        near = [name for name in names if place in (Path(name), *Path(name).parents)]
        if place == place.parent:
            break
        place = place.parent
    return [(f"config={name}", f"+config/{folder}={last}") for name in near]


def _is_default_of(run: str, part: File) -> bool:
    path = readable_path(_inside(part.root) / f"{part.name}.yaml")
    with suppress(SSLEngineError):
        layers = compose([f"config={run}"], [str(part.root)]).layers
        return path in (layer.origin for layer in layers)
    return False


def find_problem(arguments: Sequence[str], root: Path, given: argparse.Namespace) -> str:
    """Return the error's text, or nothing: any error is the verdict on what is composed.

    What a run would log and warn of is dropped.
    """
    logging.disable(logging.WARNING)
    try:
        said = [*arguments, *_engine_argument(arguments, root), *given.values]
        with redirect_stderr(io.StringIO()):
            run = open_named(said, [str(root)], given.trust_config)
            with closed(run.opened):
                _build_without_memory(run)
    except SSLEngineError as error:
        return str(error)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        logging.disable(logging.NOTSET)
    return ""


def _build_without_memory(run: Resolved) -> None:
    """Build the model on the meta device, whose tensors take no memory."""
    import torch

    from sslengine.engine import build
    from sslengine.optim.build import build_optimizer

    meta = torch.device("meta")
    with meta:
        model = build.build_base_model(run.config, meta)
        if run.engine_name != "train":
            return
        build_optimizer(model, read(run.config, OptimizerOptions), meta, 1.0)
        build.attach(run.config, build.build_loss(run.config, model, 1000, meta), model)


def _engine_argument(arguments: Sequence[str], root: Path) -> list[str]:
    """Return what VISSL's user adds to the files of a benchmark: the engine, if not `train`."""
    said = compose(arguments, [str(root)]).said()
    config = said.get("config")
    if "engine_name" in said or not isinstance(config, dict):
        return []
    named = [engine for section, engine in ENGINE_OF.items() if section in config]
    match config:  # of a frozen model without an optimizer the features are wanted
        case {"MODEL": {"FEATURE_EVAL_SETTINGS": {"EVAL_MODE_ON": True}}} if not named:
            named = [] if "OPTIMIZER" in config else ["extract_features"]
    return [f"engine_name={each}" for each in named[:1]]
