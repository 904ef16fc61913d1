"""Check for every YAML file in some folders whether sslengine can run it, and if not, why.

    sslengine check configs                   # names, keys, values; models built
    sslengine check DIR --set config.MODEL.TRUNK.RESNETS.DEPTH=18

Each file has a role. A run names its data and its model: it is checked alone. An overlay sets
several sections and a part sets one (`+config/...`): they are merged onto the nearest runs that are
right, or lack their data source alone, and are right if one of these combinations is. A file
without `config:` belongs to another program; it is listed and skipped.

Each verdict is printed at once. Nothing is computed: models are built on the meta device.
"""

from __future__ import annotations

import argparse
import io
import logging
import re
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from sslengine import catalog
from sslengine.absent import instead_of
from sslengine.command import documents
from sslengine.command.arguments import JSON, TRUST_CONFIG, VALUES, Argument, build_parser
from sslengine.config.compose import compose, overrides
from sslengine.config.files import readable_path
from sslengine.config.resolve import Resolved
from sslengine.config.run_folder import open_named
from sslengine.config.sections import read
from sslengine.config.yaml_text import load
from sslengine.dotted import below
from sslengine.errors import SSLEngineError
from sslengine.optim.options import OptimizerOptions
from sslengine.progress import progress
from sslengine.screen_console import LiteralConsole
from sslengine.trust import closed

assert catalog  # importing it declares all names

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

    @property
    def path(self) -> Path:
        inside = self.root / "config" if (self.root / "config").is_dir() else self.root
        return inside / f"{self.name}.yaml"

    @property
    def option(self) -> str:
        """The argument that adds a file of a folder; `config=` selects one of those at the top."""
        group, _, name = self.name.rpartition("/")
        return f"+config/{group}={name}"


@dataclass(frozen=True)
class FileVerdict:
    """What is wrong with a file, and what it was tried as."""

    arguments: tuple[str, ...]
    problem: str = ""  # empty: it is right
    seconds: float = 0.0
    left_out: bool = False
    source_alone: bool = False  # a run that is right with a data source that is here

    @property
    def state(self) -> str:
        return "left out" if self.left_out else "wrong" if self.problem else "right"


def make_parser() -> argparse.ArgumentParser:
    return build_parser("check", __doc__, ARGUMENTS)


def main(arguments: Sequence[str]) -> int:
    """Return 0 if every file is right, else 1."""
    parser = make_parser()
    given = parser.parse_args(arguments)
    for path in given.paths:
        if not path.exists():
            parser.error(f"there is no folder or file {path}")
    files = [file for path in given.paths for file in find(path)]
    console = LiteralConsole(width_of_file=140, stderr=given.json)
    results: list[tuple[File, FileVerdict]] = []
    with progress("checking files", len(files), "files") as step:
        for number, (file, verdict) in enumerate(judge_files(files, given), start=1):
            results.append((file, verdict))
            if verdict.problem or given.all:
                _show(number, len(files), file, verdict, console)
            step(1)
    for line in _summarise(results):
        console.print(line, soft_wrap=True)
    if given.json:
        documents.show([_describe(*each) for each in results])
    return int(any(verdict.problem and not verdict.left_out for _, verdict in results))


# ---- files and their roles


def config_root(path: Path) -> Path:
    """Return what --config-dir would name: the folder that holds `config/`, as VISSL has it."""
    for parent in (path, *path.parents):
        if parent.name == "config":
            return parent.parent
        if parent.name == "configs":
            return parent
    return path if path.is_dir() else path.parent


def find(given: Path) -> list[File]:
    """Return the files of a folder, in which may be folders of configs, or one file."""
    given = given.resolve()
    found = []
    for path in [given] if given.is_file() else sorted(given.rglob("*.yaml")):
        root = config_root(path)
        root = config_root(given) if root == path.parent else root
        found.append(File(root, name_of(path, root), role_of(path, root)))
    return found


def name_of(path: Path, root: Path) -> str:
    """Return the file's name for `config=`."""
    inside = root / "config" if (root / "config").is_dir() else root
    return path.relative_to(inside).with_suffix("").as_posix()


def role_of(path: Path, root: Path) -> str:
    """Return the role; an unreadable file of ours is a run, so that its error is reported."""
    text = ""
    try:
        text = path.read_text()
        tree = load(text)
    except (OSError, ValueError, yaml.YAMLError, RecursionError):
        ours = not text or re.search(r"^(# @package|config:)", text, re.MULTILINE)
        return RUN if ours else FOREIGN
    if isinstance(tree, dict) and "defaults" in tree:
        tree = _merge_bases(name_of(path, root), root)
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


def _merge_bases(name: str, root: Path) -> dict[str, Any] | None:
    """Merge the file with those of its `defaults`, if they can be read."""
    try:
        return compose([f"config={name}"], [str(root)]).said()
    except SSLEngineError:
        return None


def _names_its_data(data: Any) -> bool:
    splits = data.values() if isinstance(data, dict) else ()
    return any(isinstance(split, dict) and "DATA_SOURCES" in split for split in splits)


def compositions(file: File, runs: Sequence[File]) -> list[tuple[str, ...]]:
    """List what the file is tried as. No arguments add a part at the top of the folder to a run."""
    if file.is_run:
        return [(f"config={file.name}",)]
    if file.folder:
        return [(f"config={base.name}", file.option) for base in bases(file, runs)]
    return [(f"config={run.name}",) for run in runs if run.root == file.root and has_in(run, file)]


def bases(part: File, known: Sequence[File]) -> list[File]:
    """Return the runs that a part may belong to: of the nearest parent folder that has any."""
    runs = [file for file in known if file.is_run and file.root == part.root]
    folder = part.folder
    while True:
        near = [run for run in runs if not folder or f"{run.name}/".startswith(f"{folder}/")]
        if near or not folder:
            return near
        folder = folder.rpartition("/")[0]


def has_in(run: File, part: File) -> bool:
    """Say whether the part is in the `defaults` of the run."""
    try:
        layers = compose([f"config={run.name}"], [str(run.root)]).layers
    except SSLEngineError:
        return False
    return readable_path(part.path) in (layer.origin for layer in layers)


# ---- verdicts


def judge_files(
    files: Sequence[File], given: argparse.Namespace
) -> Iterator[tuple[File, FileVerdict]]:
    """Yield verdicts: runs first, since other files are checked with the right ones, and with those
    that only lack their data source."""
    # The runs that parts may belong to need not be among the files to check.
    roots = {file.root: None for file in files}
    known = dict.fromkeys([*(file for root in roots for file in find(root)), *files])
    right, nearly = [file for file in known if file.is_run], list[File]()
    for file in sorted(files, key=lambda each: not each.is_run):
        verdict = _judge_file(file, (right, nearly), given)
        if verdict.problem and file in right:
            right.remove(file)
        if verdict.source_alone:
            nearly.append(file)
        yield file, verdict


def _judge_file(
    file: File, groups: Sequence[Sequence[File]], given: argparse.Namespace
) -> FileVerdict:
    """Return the verdict on a file; a part is right if it is with one run of these groups."""
    if file.role == FOREIGN:
        return FileVerdict((), "it has no `config:`: a file of another program", left_out=True)
    verdicts: list[FileVerdict] = []
    for runs in groups[:1] if file.is_run else groups:
        problems: list[str] = []
        for arguments in compositions(file, runs)[:MOST_BASES]:
            verdicts.append(judge_composition(arguments, file.root, given))
            if not verdicts[-1].problem:
                return verdicts[-1]
            if verdicts[-1].problem in problems:
                break  # the same error with another run: the part causes it
            problems.append(verdicts[-1].problem)
    if verdicts:
        return verdicts[0]
    if file.folder:
        return FileVerdict((file.option,), "no run was found that this part could belong to")
    return FileVerdict(
        (),
        f"a file at the top of the folder is added to a run by its `defaults` alone, and no right "
        f"run has /config/{file.name} there. In a folder below it +config/FOLDER={file.name} adds "
        f"it too.",
    )


def judge_composition(
    arguments: tuple[str, ...], root: Path, given: argparse.Namespace
) -> FileVerdict:
    began, alone = time.monotonic(), False
    problem = _find_problem(arguments, root, given)
    if problem and (instead := _replace_sources(arguments, root)):
        again = _find_problem(arguments, root, given, instead)
        alone = not again
        problem = problem if len(arguments) == 1 else again
    return FileVerdict(arguments, problem, time.monotonic() - began, source_alone=alone)


def _find_problem(
    arguments: Sequence[str], root: Path, given: argparse.Namespace, instead: Sequence[str] = ()
) -> str:
    """Return the error's text, or nothing: any error is the file's verdict."""
    try:
        said = [*arguments, *_engine_argument(arguments, root), *instead, *given.values]
        with _quiet():
            run = open_named(said, [str(root)], given.trust_config)
            with closed(run.opened):
                _build_without_memory(run)
    except SSLEngineError as error:
        return str(error)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


@contextmanager
def _quiet() -> Iterator[None]:
    """Drop what the file's run would log and warn of."""
    logging.disable(logging.WARNING)
    try:
        with redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(logging.NOTSET)


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
        build.attach(run.config, build.build_loss(run.config, 1000, meta), model)


def _engine_argument(arguments: Sequence[str], root: Path) -> list[str]:
    """Return what VISSL's user adds to the files of a benchmark: the engine, if not `train`."""
    said = compose(arguments, [str(root)]).said()
    config = said.get("config")
    if "engine_name" in said or not isinstance(config, dict):
        return []
    named = [engine for section, engine in ENGINE_OF.items() if section in config]
    return [f"engine_name={each}" for each in named[:1] or _frozen_engine(config)]


def _frozen_engine(config: dict[str, Any]) -> list[str]:
    """Return the engine of a frozen model: without an optimizer the features are wanted."""
    match config:
        case {"MODEL": {"FEATURE_EVAL_SETTINGS": {"EVAL_MODE_ON": True}}}:
            return [] if "OPTIMIZER" in config else ["extract_features"]
    return []


def _replace_sources(arguments: Sequence[str], root: Path) -> list[str]:
    """Return overrides of data sources that are not here, but for those of the overlay or part."""
    try:
        said = compose(arguments, [str(root)])
    except SSLEngineError:
        return []  # it is the problem already
    own = said.layers[-1].tree if len(arguments) > 1 else {}
    found: dict[str, Any] = {}
    for split, key in product(("TRAIN", "TEST"), ("DATA_SOURCES", "LABEL_SOURCES")):
        names = said.last_value(f"config.DATA.{split}.{key}") or []
        absent = any(instead_of("data source", str(each)) for each in names)
        if absent and below(own, ("config", "DATA", split, key)) is None:
            found[f"DATA.{split}.{key}"] = ["disk_folder"] * len(names)
    return overrides(found)


# ---- what is printed


def _describe(file: File, verdict: FileVerdict) -> dict[str, Any]:
    return {
        "file": file.name, "folder": str(file.root), "role": file.role, "verdict": verdict.state,
        "problem": verdict.problem, "tried_as": verdict.arguments, "seconds": verdict.seconds,
    }  # fmt: skip


def _show(number: int, of: int, file: File, verdict: FileVerdict, console: LiteralConsole) -> None:
    line = f"[{number}/{of}] {verdict.state:8} {file.role:7} {file.name}  {verdict.seconds:.1f} s"
    console.print(line, soft_wrap=True)
    if verdict.problem:
        tried = " ".join(verdict.arguments)
        reason = _brief(verdict.problem).replace("\n", "\n      ")
        console.print(f"      {reason}\n      tried as: {tried}".rstrip(), soft_wrap=True)


def _summarise(results: Sequence[tuple[File, FileVerdict]]) -> Iterator[str]:
    tried = [verdict for _, verdict in results if not verdict.left_out]
    wrong = [verdict for verdict in tried if verdict.problem]
    reasons = Counter(_brief(verdict.problem).split("\n")[0] for verdict in wrong)
    for reason, count in reasons.most_common(10):
        if count > 1:
            yield f"{count} times: {reason}"
    for role in (RUN, OVERLAY, PART, FOREIGN):
        of_role = [verdict for file, verdict in results if file.role == role]
        bad = sum(bool(each.problem) for each in of_role)
        if role == FOREIGN and of_role:
            yield f"{len(of_role)} files of other programs left out"
        elif of_role:
            yield f"{len(of_role)} {role}s: {len(of_role) - bad} right, {bad} wrong"
    if len(families := Counter(_family(file) for file, _ in results)) > 1:
        wrong_of = Counter(_family(file) for file, verdict in results if verdict in wrong)
        left_out = Counter(_family(file) for file, verdict in results if verdict.left_out)
        yield f"{'family':44} right  wrong"
        for name in sorted(families.keys() - {n for n in families if families[n] == left_out[n]}):
            right = families[name] - wrong_of[name] - left_out[name]
            yield f"{name:44} {right:5}  {wrong_of[name]:5}"
    yield f"{len(tried)} files: {len(tried) - len(wrong)} right, {len(wrong)} wrong"


def _family(file: File) -> str:
    """Return the first two folders of the file's name."""
    return "/".join(file.name.split("/")[:-1][:2]) or "."


def _brief(problem: str) -> str:
    """Return the problem without its indented hints; running the file prints the full text."""
    return "\n".join(line for line in problem.splitlines() if not line.startswith("  "))
