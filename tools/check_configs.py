#!/usr/bin/env python3
"""Say of every YAML file below some folders whether sslengine can run it, and why not.

    python tools/check_configs.py configs                   # names, keys, values; models built
    python tools/check_configs.py ~/vissl/configs --train   # two steps of each, on this CPU
    python tools/check_configs.py DIR --train --set config.MODEL.TRUNK.RESNETS.DEPTH=18

A file with DATA, MODEL and OPTIMIZER (or a defaults list) is a run. Any other is a part
(`+config/...`): it is put on top of the runs nearest to it, and is right if it is with one of
them. Without --train nothing is computed: models are built without memory. With it each run gets
one process, the CPU, fp32, generated images and a batch of 4; what --set gives comes last.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import torch
import yaml
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sslengine import catalog
from sslengine.config.compose import compose
from sslengine.config.resolve import Resolved, resolve
from sslengine.errors import SSLEngineError
from sslengine.task import build
from sslengine.task.task import SelfSupervisionTask
from sslengine.trainer import loop

PRELOADED = ["torchvision", "timm", "sslengine.catalog", "sslengine.task.task"]
STEPS = 2
SMALL = [
    f"config.OPTIMIZER.num_iterations={STEPS}",
    "config.MACHINE.DEVICE=cpu",
    "config.MODEL.AMP_PARAMS.USE_AMP=false",
    "config.DISTRIBUTED.NUM_NODES=1",
    "config.DISTRIBUTED.NUM_PROC_PER_NODE=1",
    "config.DATA.NUM_DATALOADER_WORKERS=0",
    "config.DATA.TRAIN.DATA_SOURCES=[synthetic]",
    "config.DATA.TRAIN.DATA_PATHS=[]",
    "config.DATA.TRAIN.LABEL_PATHS=[]",
    "config.DATA.TRAIN.RANDOM_SYNTHETIC_IMAGES=true",
    "config.DATA.TRAIN.DEFAULT_GRAY_IMG_SIZE=40",
    "config.DATA.TRAIN.DATA_LIMIT=16",
    "config.DATA.TRAIN.BATCHSIZE_PER_REPLICA=4",
    "config.TEST_MODEL=false",
]
WITH_LABELS = [
    "config.DATA.TRAIN.LABEL_SOURCES=[synthetic]",
    "config.DATA.TRAIN.RANDOM_SYNTHETIC_LABELS=3",
]


@dataclass(frozen=True)
class File:
    """One YAML file: its config folder, its name in it, and whether it is a run."""

    root: Path
    name: str
    is_run: bool

    @property
    def folder(self) -> str:
        return self.name.rpartition("/")[0]

    @property
    def option(self) -> str:
        group, _, name = self.name.rpartition("/")
        return f"+config/{group}={name}" if group else f"+config={name}"


@dataclass(frozen=True)
class Trial:
    """One composition to try, and how."""

    arguments: tuple[str, ...]
    root: Path
    train: bool
    overrides: tuple[str, ...] = ()


@dataclass(frozen=True)
class Verdict:
    arguments: tuple[str, ...]
    problem: str = ""  # none: it is right
    seconds: float = 0.0


# ---- what is there


def config_root(path: Path) -> Path:
    """The folder that --config-dir would name: the one that holds `config/`, as VISSL has it."""
    for parent in (path, *path.parents):
        if parent.name == "config":
            return parent.parent
        if parent.name == "configs":
            return parent
    return path


def find(given: Path) -> list[File]:
    """The files of one folder, or one file."""
    root = config_root(given.resolve())
    inside = root / "config" if (root / "config").is_dir() else root
    paths = [given.resolve()] if given.is_file() else sorted(given.resolve().rglob("*.yaml"))
    return [
        File(root, path.relative_to(inside).with_suffix("").as_posix(), _is_run(path))
        for path in paths
    ]


def _is_run(path: Path) -> bool:
    """What cannot be read counts as a run, so that the reason is told."""
    try:
        tree = yaml.safe_load(path.read_text())
    except (OSError, ValueError, yaml.YAMLError):
        return True
    if not isinstance(tree, dict):
        return True
    return "defaults" in tree or {"DATA", "MODEL", "OPTIMIZER"} <= set(tree.get("config") or ())


def bases(part: File, known: Sequence[File]) -> list[File]:
    """The runs that a part may be meant for: those of the nearest folder above that has some."""
    runs = [file for file in known if file.is_run and file.root == part.root]
    folder = part.folder
    while True:
        near = [run for run in runs if not folder or f"{run.name}/".startswith(f"{folder}/")]
        if near or not folder:
            return near
        folder = folder.rpartition("/")[0]


# ---- trying one


def attempt(trial: Trial) -> None:
    """Raises what is wrong."""
    small = for_this_machine(trial.arguments, trial.root) if trial.train else []
    run = resolve([*trial.arguments, *small, *trial.overrides], [str(trial.root)])
    (train_two_steps if trial.train else build_without_memory)(run)


def for_this_machine(arguments: Sequence[str], root: Path) -> list[str]:
    """What lets a config of any size train here."""
    sources = compose(arguments, [str(root)]).last_value("config.DATA.TRAIN.LABEL_SOURCES")
    return [*SMALL, *(WITH_LABELS if sources else [])]


def build_without_memory(run: Resolved) -> None:
    """Tensors on the meta device have shapes and no values, however large the model."""
    meta = torch.device("meta")
    with meta:
        model = build.build_base_model(run.config, meta)
        build.build_run_optimizer(run.config, model, meta, epochs=1.0)
        build.attach(build.build_loss(run.config, 1000, meta), model)


def train_two_steps(run: Resolved) -> None:
    with tempfile.TemporaryDirectory() as folder:
        task = SelfSupervisionTask(run.config, Path(folder), torch.device("cpu"), hooks=[])
        task.prepare()
        loop.run(task)
        if task.iteration != STEPS:
            raise RuntimeError(f"made {task.iteration} steps, not {STEPS}")


def _child(trial: Trial, answer: Connection) -> None:
    """In a process of its own: one that is killed for its memory takes no other with it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    torch.set_num_threads(1)
    try:
        attempt(trial)
        answer.send("")
    except SSLEngineError as error:
        answer.send(str(error))
    except Exception as error:  # anything at all is the file's verdict
        answer.send(f"{type(error).__name__}: {error}")


def judge(trial: Trial, timeout: float) -> Verdict:
    context = multiprocessing.get_context("forkserver")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(trial, theirs))
    began = time.monotonic()
    process.start()
    theirs.close()
    try:
        problem = ours.recv() if ours.poll(timeout) else f"not done after {timeout:.0f} s"
    except EOFError:
        process.join()
        problem = f"the process ended with status {process.exitcode}; killed for its memory?"
    process.kill()
    process.join()
    return Verdict(trial.arguments, problem, time.monotonic() - began)


# ---- all of them


def check(file: File, known: Sequence[File], options: argparse.Namespace) -> Verdict:
    """A part is right with the first run that it is right with."""
    choices = [(f"config={file.name}",)] if file.is_run else [
        (f"config={base.name}", file.option) for base in bases(file, known)
    ]  # fmt: skip
    verdicts = []
    for arguments in choices:
        trial = Trial(arguments, file.root, options.train, tuple(options.set))
        verdicts.append(judge(trial, options.timeout))
        if not verdicts[-1].problem:
            return verdicts[-1]
    missing = Verdict((file.option,), "no run was found that this part could belong to")
    return verdicts[0] if verdicts else missing


def verdicts(files: Sequence[File], options: argparse.Namespace) -> Iterator[tuple[File, Verdict]]:
    # The runs that parts may belong to need not be among the files to check.
    known = [file for root in {file.root: None for file in files} for file in find(root)]
    # Imported once, by the server that the processes are forked from.
    multiprocessing.get_context("forkserver").set_forkserver_preload(PRELOADED)
    with ThreadPoolExecutor(options.jobs) as pool:
        yield from zip(files, pool.map(lambda file: check(file, known, options), files))


def show(results: Sequence[tuple[File, Verdict]], console: Console, every: bool) -> None:
    table = Table("file, and what it was tried as", "what is wrong", show_lines=True)
    for file, verdict in results:
        if verdict.problem or every:
            tried = "\n".join(f"  {argument}" for argument in verdict.arguments)
            table.add_row(Text(f"{file.name}\n{tried}"), Text(_brief(verdict.problem) or "nothing"))
    if table.row_count:
        console.print(table)
    wrong = sum(bool(verdict.problem) for _, verdict in results)
    console.print(f"{len(results)} files: {len(results) - wrong} right, {wrong} wrong")


def _brief(problem: str) -> str:
    """Without the hints, which are indented: the full text comes from running the file."""
    return "\n".join(line for line in problem.splitlines() if not line.startswith("  "))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("paths", nargs="+", type=Path, metavar="DIR", help="folders, or files")
    parser.add_argument("--train", action="store_true", help="train two steps of each")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="for all")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="at the same time")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds for one")
    parser.add_argument("--all", action="store_true", help="list those that are right as well")
    options = parser.parse_args(arguments)
    for path in options.paths:
        if not path.exists():
            parser.error(f"there is no folder or file {path}")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """0 if every file is right, else 1."""
    assert catalog  # importing it declares all names
    options = parse(arguments)
    files = [file for path in options.paths for file in find(path)]
    console = Console()
    if not console.is_terminal:
        console = Console(width=140)
    results = []
    for number, result in enumerate(verdicts(files, options), start=1):
        results.append(result)
        if console.is_terminal:
            console.print(f"[{number}/{len(files)}] {result[0].name}", end="\r", markup=False)
    show(results, console, options.all)
    return int(any(verdict.problem for _, verdict in results))


if __name__ == "__main__":
    sys.exit(main())
