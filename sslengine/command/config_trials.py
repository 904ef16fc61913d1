"""One composition is resolved and built, or trained for two steps, in a process of trials."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from sslengine import catalog  # noqa: F401 - declares all names, in the processes too
from sslengine.absent import instead_of
from sslengine.command.checked_files import ENGINE_OF
from sslengine.config.compose import Composition, compose, overrides
from sslengine.config.resolve import Resolved
from sslengine.config.run_folder import open_named
from sslengine.config.sections import read
from sslengine.data.options import OF_ENCODED_SOURCES, SplitOptions
from sslengine.dotted import below
from sslengine.engine import build, loop
from sslengine.engine.services import Services
from sslengine.engine.task import SelfSupervisionTask
from sslengine.errors import SSLEngineError
from sslengine.optim.build import build_optimizer
from sslengine.optim.options import OptimizerOptions
from sslengine.trust import closed

STEPS = 2


def _generated(split: str) -> list[str]:
    values = {
        "DATA_SOURCES": ["synthetic"],
        "DATA_PATHS": [],
        "LABEL_PATHS": [],
        "RANDOM_SYNTHETIC_IMAGES": True,
        "DEFAULT_GRAY_IMG_SIZE": 40,
        "DATA_LIMIT": 16,
        "BATCHSIZE_PER_REPLICA": 4,
        # Options of files, which generated images do not have.
        **{key: getattr(SplitOptions(), key) for key in OF_ENCODED_SOURCES},
    }
    return overrides({f"DATA.{split}.{key}": value for key, value in values.items()})


_HERE = [
    f"config.OPTIMIZER.num_iterations={STEPS}",
    "config.MACHINE.DEVICE=cpu",
    "config.MODEL.AMP_PARAMS.USE_AMP=false",
    "config.DISTRIBUTED.NUM_NODES=1",
    "config.DISTRIBUTED.NUM_PROC_PER_NODE=1",
    "config.DATA.NUM_DATALOADER_WORKERS=0",
]
SMALL = [*_HERE, *_generated("TRAIN"), "config.TEST_MODEL=false"]


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
    source_alone: bool = False  # a run that is right with a data source that is here


def attempt(trial: Trial, small: Sequence[str] = ()) -> None:
    """Raise an error if the composition is wrong."""
    engine = engine_argument(trial.arguments, trial.root)
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


def for_this_machine(arguments: Sequence[str], root: Path, sizes: bool = False) -> list[str]:
    """Return overrides with which a config of any size can train here, or only test.

    sizes: of crops too.
    """
    said = compose(arguments, [str(root)])
    split = "TEST" if said.last_value("config.TEST_ONLY") else "TRAIN"
    small = [*_HERE, *_generated("TEST")] if split == "TEST" else SMALL
    more: dict[str, Any] = {}
    transforms = said.last_value(f"config.DATA.{split}.TRANSFORMS") or []
    if sizes:
        more["TRANSFORMS"] = transforms = _shrink_sizes(transforms)
    if said.last_value(f"config.DATA.{split}.LABEL_SOURCES"):
        width = _last_width(said)
        more |= {"LABEL_SOURCES": ["synthetic"], "RANDOM_SYNTHETIC_LABELS": min(3, width)}
        if said.last_value("config.LOSS.name") == "bce_logits_multiple_output_single_target":
            rows = {"name": "OneHotEncode", "num_classes": width}
            more |= {"TRANSFORMS": [rows, *transforms], "COLLATE_FUNCTION": "default_collate"}
            more["COLLATE_FUNCTION_PARAMS"] = {}
    return [*small, *overrides({f"DATA.{split}.{key}": value for key, value in more.items()})]


def _last_width(said: Composition) -> int:
    """Return the number of outputs of the last head, as far as the file says it."""
    heads = str(said.last_value("config.MODEL.HEAD.PARAMS"))
    found = re.findall(r"'(?:dims|num_classes)': \[?(?:[^]}]*, )?(\d+)[]},]", heads)
    return int(found[-1]) if found else 3


def _shrink_sizes(value: Any, key: str = "") -> Any:
    """Return the transforms with sides of about a quarter, a multiple of 32."""
    match value:
        case dict():
            return {name: _shrink_sizes(each, name) for name, each in value.items()}
        case list():
            return [_shrink_sizes(each, key) for each in value]
        case int() if key in ("size", "size_crops"):
            return min(value, 32 * max(1, round(value / 128)))
    return value


def available_sources(trial: Trial) -> list[str]:
    """Return overrides of data sources that are not here, but for those of the overlay or part."""
    said = compose(trial.arguments, [str(trial.root)])
    own = said.layers[-1].tree if len(trial.arguments) > 1 else {}
    found: dict[str, Any] = {}
    for split, key in product(("TRAIN", "TEST"), ("DATA_SOURCES", "LABEL_SOURCES")):
        names = said.last_value(f"config.DATA.{split}.{key}") or []
        absent = any(instead_of("data source", str(each)) for each in names)
        if absent and below(own, ("config", "DATA", split, key)) is None:
            found[f"DATA.{split}.{key}"] = ["disk_folder"] * len(names)
    return overrides(found)


def build_without_memory(run: Resolved) -> None:
    """Build the model on the meta device, whose tensors take no memory."""
    meta = torch.device("meta")
    with meta:
        model = build.build_base_model(run.config, meta)
        if run.engine_name != "train":
            return
        build_optimizer(model, read(run.config, OptimizerOptions), meta, 1.0)
        build.attach(run.config, build.build_loss(run.config, 1000, meta), model)


def train_two_steps(run: Resolved) -> None:
    with tempfile.TemporaryDirectory() as folder:
        task = SelfSupervisionTask(
            run.config, Path(folder), torch.device("cpu"), hooks=[], services=Services()
        )
        task.prepare()
        loop.run(task)
        if task.iteration != STEPS and not task.test_only:
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
        problem, alone = _problem(trial), False
        with suppress(SSLEngineError):  # it is the problem already
            if problem and (instead := available_sources(trial)):
                again = _problem(dataclasses.replace(trial, overrides=(*instead, *trial.overrides)))
                alone = not again
                problem = problem if len(trial.arguments) == 1 else again
        trials.send((problem, alone, len(sys.modules) > before and _brings_code(trial)))


def _problem(trial: Trial) -> str:
    """Return the error's text, or nothing. Sizes are small at first; an error may be of those."""
    try:
        if trial.train:
            with suppress(Exception):
                attempt(trial, for_this_machine(trial.arguments, trial.root, sizes=True))
                return ""
            attempt(trial, for_this_machine(trial.arguments, trial.root))
        else:
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
            problem, alone, done_with_it = f"not finished after {timeout:.0f} s", False, True
            if self._pipe.poll(timeout):
                problem, alone, done_with_it = self._pipe.recv()
        except (EOFError, OSError):
            alone, done_with_it = False, True
            self._process.join()
            status = self._process.exitcode
            problem = f"the process ended with status {status}; out of memory?"
        if trial.train or done_with_it:
            self.end()
        return Verdict(trial.arguments, problem, time.monotonic() - began, source_alone=alone)

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
