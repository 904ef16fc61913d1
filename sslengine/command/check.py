"""Check for every YAML file in some folders whether sslengine can run it, and if not, why.

    sslengine check configs                   # names, keys, values; models built
    sslengine check DIR --set config.MODEL.TRUNK.RESNETS.DEPTH=18

Each file has a role. A run names its data and its model: it is checked alone. An overlay sets
several sections and a part sets one (`+config/...`): they are merged onto the nearest runs that are
right, and are right if one of these combinations is. A file without `config:` belongs to another
program; it is listed and skipped.

Each verdict is printed at once. Nothing is computed: models are built on the meta device.
"""

from __future__ import annotations

import argparse
import io
import logging
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from sslengine.command.arguments import (
    JSON,
    TRUST_CONFIG,
    VALUES,
    Argument,
    make_parser,
    print_document,
)
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
RUN, OVERLAY, PART, FOREIGN = "run", "overlay", "part", "foreign"
ARGUMENTS = (
    Argument("paths", "folders, or files", Path, "DIR", nargs="+"),
    replace(VALUES, help="override of every run"),
    Argument("--all", "print files without problems too", bool),
    replace(TRUST_CONFIG, help="let the config.yaml of a run run code"),
    replace(JSON, help="print all verdicts as one JSON document"),
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

    @property
    def folder(self) -> str:
        return self.name.rpartition("/")[0]


@dataclass(frozen=True)
class FileVerdict:
    """What is wrong with a file, and what it was tried as."""

    tried_as: tuple[str, ...]
    problem: str = ""  # empty: it is right
    left_out: bool = False

    @property
    def state(self) -> str:
        return "left out" if self.left_out else "wrong" if self.problem else "right"


def main(arguments: Sequence[str]) -> int:
    """Return 0 if every file is right, else 1."""
    parser = make_parser(__name__)
    given = parser.parse_args(arguments)
    for path in given.paths:
        if not path.exists():
            parser.error(f"there is no folder or file {path}")
    files = [file for path in given.paths for file in find(path)]
    console = LiteralConsole(width_of_file=140, stderr=given.json)
    results: list[tuple[File, FileVerdict]] = []
    with progress("checking files", len(files), "files") as step:
        for file, verdict in judge_files(files, given):
            results.append((file, verdict))
            if verdict.problem or given.all:
                line = f"[{len(results)}/{len(files)}] {verdict.state:8} {file.role:7} {file.name}"
                console.print(line, *_explain(verdict), sep="\n      ", soft_wrap=True)
            step(1)
    console.print(*_summarise(results), sep="\n", soft_wrap=True)
    if given.json:
        print_document([
            {"file": file.name, "folder": str(file.root), "role": file.role,
             "verdict": verdict.state, "problem": verdict.problem, "tried_as": verdict.tried_as}
            for file, verdict in results
        ])  # fmt: skip
    return int(any(verdict.state == "wrong" for _, verdict in results))


def _explain(verdict: FileVerdict) -> Iterator[str]:
    if verdict.problem:
        yield from _shorten(verdict.problem)
        yield f"tried as: {' '.join(verdict.tried_as)}"


def _summarise(results: Sequence[tuple[File, FileVerdict]]) -> Iterator[str]:
    wrong = [verdict for _, verdict in results if verdict.state == "wrong"]
    for reason, count in Counter(_shorten(each.problem)[0] for each in wrong).most_common(10):
        if count > 1:
            yield f"{count} times: {reason}"
    states = Counter((file.role, verdict.state) for file, verdict in results)
    for (role, state), count in sorted(states.items()):
        yield f"{count} {role}{'s' * (count > 1)}: {state}"
    right = sum(verdict.state == "right" for _, verdict in results)
    yield f"{right + len(wrong)} files: {right} right, {len(wrong)} wrong"


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
        inside = root / "config" if (root / "config").is_dir() else root
        name = path.relative_to(inside).with_suffix("").as_posix()
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
    sections = {"DATA", "MODEL", "OPTIMIZER"} & set(config)
    judges = "engine_name" in tree or not ENGINE_OF.keys().isdisjoint(config)
    whole = len(sections) == 3 or (judges and "MODEL" in sections)
    if whole and ("IMG_RETRIEVAL" in config or _names_its_data(config.get("DATA"))):
        return RUN
    return OVERLAY if len(sections) > 1 else PART


def _names_its_data(data: Any) -> bool:
    splits = data.values() if isinstance(data, dict) else ()
    return any(isinstance(split, dict) and "DATA_SOURCES" in split for split in splits)


# ---- verdicts


def judge_files(
    files: Sequence[File], given: argparse.Namespace
) -> Iterator[tuple[File, FileVerdict]]:
    """Yield verdicts: runs first, since other files are checked with the right ones."""
    # The runs that parts may belong to need not be among the files to check.
    roots = {file.root: None for file in files}
    known = dict.fromkeys([*(file for root in roots for file in find(root)), *files])
    right = [file for file in known if file.is_run]
    for file in sorted(files, key=lambda each: not each.is_run):
        verdict = _judge_file(file, right, given)
        if verdict.problem and file in right:
            right.remove(file)
        yield file, verdict


def _judge_file(file: File, right: Sequence[File], given: argparse.Namespace) -> FileVerdict:
    """Return the verdict on a file; a part is right if it is with one run."""
    if file.role == FOREIGN:
        return FileVerdict((), "it has no `config:`: a file of another program", left_out=True)
    verdicts: list[FileVerdict] = []
    for arguments in compositions(file, right)[:MOST_BASES]:
        verdicts.append(FileVerdict(arguments, find_problem(arguments, file.root, given)))
        if not verdicts[-1].problem:
            return verdicts[-1]
        if any(verdicts[-1].problem == each.problem for each in verdicts[:-1]):
            break  # the same error with another run: the part causes it
    if verdicts:
        return verdicts[0]
    return FileVerdict((), "no run was found that this file could belong to, by its place or by "
                       "the `defaults` of a run")  # fmt: skip


def compositions(file: File, runs: Sequence[File]) -> list[tuple[str, ...]]:
    """List what the file is tried as: alone, or added to the runs that it may belong to.

    A part at the top of the folder is in the `defaults` of such a run, and no argument adds it.
    """
    if file.is_run:
        return [(f"config={file.name}",)]
    runs = [run for run in runs if run.root == file.root]
    if not file.folder:
        return [(f"config={run.name}",) for run in runs if _has_in_defaults(run, file)]
    added = f"+config/{file.folder}={file.name.rpartition('/')[2]}"
    folder, near = file.folder, list[File]()
    while not near:  # those of the nearest parent folder that has any
        near = [run for run in runs if not folder or f"{run.name}/".startswith(f"{folder}/")]
        if not folder:
            break
        folder = folder.rpartition("/")[0]
    return [(f"config={run.name}", added) for run in near]


def _has_in_defaults(run: File, part: File) -> bool:
    try:
        layers = compose([f"config={run.name}"], [str(run.root)]).layers
    except SSLEngineError:
        return False
    inside = part.root / "config" if (part.root / "config").is_dir() else part.root
    return readable_path(inside / f"{part.name}.yaml") in (layer.origin for layer in layers)


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
