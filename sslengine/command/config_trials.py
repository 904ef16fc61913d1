"""One composition is resolved and built, or trained for two steps, in a process of trials."""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from sslengine import catalog  # noqa: F401 - declares all names, in the processes too
from sslengine.command.checked_files import ENGINE_OF
from sslengine.config.compose import compose
from sslengine.config.resolve import Resolved
from sslengine.config.run_folder import open_named
from sslengine.data.options import OF_ENCODED_SOURCES, SplitOptions
from sslengine.errors import SSLEngineError
from sslengine.services.order import Services
from sslengine.task import build
from sslengine.task.task import SelfSupervisionTask
from sslengine.trainer import loop
from sslengine.trust import closed

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
    # Options of files, which generated images do not have.
    *(
        f"config.DATA.TRAIN.{key}={json.dumps(getattr(SplitOptions(), key))}"
        for key in OF_ENCODED_SOURCES
    ),
]
WITH_LABELS = [
    "config.DATA.TRAIN.LABEL_SOURCES=[synthetic]",
    "config.DATA.TRAIN.RANDOM_SYNTHETIC_LABELS=3",
]


@dataclass(frozen=True)
class Trial:
    """One composition to check, and how."""

    arguments: tuple[str, ...]
    root: Path
    train: bool
    overrides: tuple[str, ...] = ()
    trusted: bool = False  # the config.yaml of a run's folder


@dataclass(frozen=True)
class Verdict:
    arguments: tuple[str, ...]
    problem: str = ""  # empty: it is right
    seconds: float = 0.0
    left_out: bool = False


def attempt(trial: Trial) -> None:
    """Raise an error if the composition is wrong."""
    engine = engine_argument(trial.arguments, trial.root)
    small = for_this_machine(trial.arguments, trial.root) if trial.train else []
    arguments = [*trial.arguments, *engine, *small, *trial.overrides]
    run = open_named(arguments, [str(trial.root)], trial.trusted)
    trains = trial.train and run.engine_name == "train"
    with closed(run.opened):
        (train_two_steps if trains else build_without_memory)(run)


def engine_argument(arguments: Sequence[str], root: Path) -> list[str]:
    """What VISSL's user adds to the files of a benchmark: the engine, if it is not `train`."""
    said = compose(arguments, [str(root)]).said()
    config = said.get("config")
    if "engine_name" in said or not isinstance(config, dict):
        return []
    named = [engine for section, engine in ENGINE_OF.items() if section in config]
    return [f"engine_name={each}" for each in named[:1] or _of_frozen(config)]


def _of_frozen(config: dict[str, Any]) -> list[str]:
    """Without an optimizer, the features are wanted."""
    match config:
        case {"MODEL": {"FEATURE_EVAL_SETTINGS": {"EVAL_MODE_ON": True}}}:
            return [] if "OPTIMIZER" in config else ["extract_features"]
    return []


def for_this_machine(arguments: Sequence[str], root: Path) -> list[str]:
    """Overrides with which a config of any size can train here."""
    sources = compose(arguments, [str(root)]).last_value("config.DATA.TRAIN.LABEL_SOURCES")
    return [*SMALL, *(WITH_LABELS if sources else [])]


def build_without_memory(run: Resolved) -> None:
    """Build the model on the meta device, whose tensors take no memory."""
    meta = torch.device("meta")
    with meta:
        model = build.build_base_model(run.config, meta)
        if run.engine_name != "train":
            return
        build.build_run_optimizer(run.config, model, meta, epochs=1.0)
        build.attach(run.config, build.build_loss(run.config, 1000, meta), model)


def train_two_steps(run: Resolved) -> None:
    with tempfile.TemporaryDirectory() as folder:
        task = SelfSupervisionTask(
            run.config, Path(folder), torch.device("cpu"), hooks=[], services=Services()
        )
        task.prepare()
        loop.run(task)
        if task.iteration != STEPS:
            raise RuntimeError(f"{task.iteration} steps instead of {STEPS}")


def _serve(trials: Connection) -> None:
    """Answer trials until the pipe is closed."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    torch.set_num_threads(1)
    while True:
        try:
            trial = trials.recv()
        except EOFError:
            return
        before = len(sys.modules)
        problem = _problem(trial)
        trials.send((problem, len(sys.modules) > before and _brings_code(trial)))


def _problem(trial: Trial) -> str:
    try:
        attempt(trial)
    except SSLEngineError as error:
        return str(error)
    except Exception as error:  # any error is the file's verdict
        return f"{type(error).__name__}: {error}"
    return ""


def _brings_code(trial: Trial) -> bool:
    try:
        arguments = [*trial.arguments, *trial.overrides]
        return bool(compose(arguments, [str(trial.root)]).last_value("config.PLUGINS"))
    except SSLEngineError:
        return False


class Worker:
    """A process that checks one composition after another; it is replaced if it dies.

    It imports modules once. A trial that trains or runs its own code gets a separate process.
    """

    def __init__(self) -> None:
        self._process: Any = None
        self._pipe: Any = None

    def judge(self, trial: Trial, timeout: float) -> Verdict:
        if self._process is None:
            self._start()
        began = time.monotonic()
        self._pipe.send(trial)
        try:
            problem, done_with_it = f"not finished after {timeout:.0f} s", True
            if self._pipe.poll(timeout):
                problem, done_with_it = self._pipe.recv()
        except (EOFError, OSError):
            done_with_it = True
            self._process.join()
            status = self._process.exitcode
            problem = f"the process ended with status {status}; out of memory?"
        if trial.train or done_with_it:
            self.end()
        return Verdict(trial.arguments, problem, time.monotonic() - began)

    def _start(self) -> None:
        context = multiprocessing.get_context("forkserver")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,))
        self._process.start()
        theirs.close()

    def end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._pipe.close()
            self._process = None
