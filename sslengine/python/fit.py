"""`sslengine.fit`: train from objects, with the engine's loop, train steps and hooks.

session = sslengine.fit(model, loss, data, optimizer, epochs=10)
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from sslengine import catalog  # noqa: F401 - declares what ships with sslengine
from sslengine.checkpoint.lock import owned
from sslengine.checkpoint.rng import rng_state, set_rng_state
from sslengine.config.resolve import Resolved, resolve_dict
from sslengine.data.given import Collate, samplers_of
from sslengine.distributed.ranks import is_primary, world_size
from sslengine.engine import loop
from sslengine.engines.run import Run
from sslengine.engines.train import resume
from sslengine.errors import ConfigError, DataError
from sslengine.launch.folder import expect_run_folder
from sslengine.methods.foreign import FunctionLoss
from sslengine.monitor.console import ConsoleWriter, Screen
from sslengine.monitor.writers import JsonLinesWriter, RunPlace
from sslengine.python.passes import choose_device, join_others
from sslengine.python.session import History, KeepHistory, Session
from sslengine.python.task import GivenParts, PythonTask

Loss = Callable[..., Any]


def fit(
    model: nn.Module,
    loss: Loss | None,
    data: Any,
    optimizer: torch.optim.Optimizer | Mapping[str, Any] | None = None,
    *,
    epochs: int | None = None,
    iterations: int | None = None,
    validation: Any = None,
    test: Any = None,
    batch_size: int = 32,
    shuffle: bool = True,
    drop_last: bool = False,
    collate_fn: Collate | None = None,
    workers: int = 0,
    accumulate: int = 1,
    hooks: Sequence[Any] = (),
    device: str | torch.device | None = None,
    precision: str = "fp32",
    out: str | Path | None = None,
    seed: int = 0,
    quiet: bool = False,
    values: Mapping[str, Any] | None = None,
) -> Session:
    """Train the model in place and return a session with it and its history.

    loss: (output, target) -> a number, or a dict with `loss` and its parts; or a method,
        (output, sample, step), which is trained too. None: the model returns its losses itself
        (loss_dict_train_step).
    data, validation, test: a dataset of (input, target), or a loader of batches. The model is
        tested on `validation` after each epoch; `test` is for session.predict.
    optimizer: a torch optimizer over model.parameters() (and the loss's, if it has any), whose
        learning rate stays constant; or a dict with the keys of config.OPTIMIZER.
    epochs or iterations: the length of the whole run; give one of them.
    batch_size, shuffle, drop_last, collate_fn, workers: how each rank reads a dataset.
    out: a folder for checkpoints and metrics.jsonl; the same call resumes from it. None: no files.
    quiet: print nothing of its progress. values: any other keys under `config` in YAML.
    """
    _expect_objects(epochs, iterations, model=model, loss=loss, data=data)
    place = choose_device(device)
    join_others(place)
    run_dir = None if out is None else Path(out).expanduser()
    own = _choose_keys(place, precision, seed, run_dir, loss, validation)
    length = {"num_epochs": epochs, "num_iterations": iterations, "accumulate": accumulate}
    own["OPTIMIZER"] = {**(optimizer if isinstance(optimizer, Mapping) else {}), **length}
    resolved = resolve_dict(_merge(own, values or {}))
    if run_dir is not None:
        expect_run_folder(resolved.config)
        _expect_resumable(data)
    history = History()
    parts = GivenParts(
        model,
        loss if isinstance(loss, nn.Module) else FunctionLoss(loss) if loss else nn.Module(),
        optimizer if isinstance(optimizer, torch.optim.Optimizer) else None,
        {"TRAIN": data, "TEST": validation},
        {"batch_size": batch_size, "drop_last": drop_last, "collate_fn": collate_fn,
         "workers": workers, "shuffle": shuffle},
        tuple(hooks),
        (KeepHistory(history),),
    )  # fmt: skip
    streams = rng_state()
    try:
        task = PythonTask(resolved.config, run_dir, place, parts)
        task.prepare()
        with owned(run_dir) if run_dir is not None else nullcontext():
            _train(task, resolved, quiet)
    finally:
        set_rng_state(streams)
    return Session(task, {"train": data, "validation": validation, "test": test}, history)


def _expect_objects(epochs: int | None, iterations: int | None, **given: Any) -> None:
    for name, value in given.items():
        if isinstance(value, str | Path):
            raise ConfigError(
                f"fit: {name}={str(value)!r}: expected an object. For a path and the names of a "
                f'method and a trunk: sslengine.train("~/photos", "METHOD", "resnet50").'
            )
    if (epochs is None) == (iterations is None):
        said = "neither" if epochs is None else f"epochs={epochs} and iterations={iterations}"
        raise ConfigError(
            f"fit: give the length of the run as epochs=... or as iterations=...; got {said}."
        )


def _choose_keys(
    device: torch.device, precision: str, seed: int, folder: Path | None, loss: Any, validation: Any
) -> dict[str, Any]:
    """Choose the keys under `config` of a run of objects."""
    keys: dict[str, Any] = {
        "SEED_VALUE": seed,
        "TEST_MODEL": validation is not None,
        "MACHINE": {
            "DEVICE": {"cuda": "gpu", "mps": "mps"}.get(device.type, "cpu"),
            "PRECISION": precision,
        },
        "DISTRIBUTED": {"NUM_PROC_PER_NODE": world_size()},
        "HOOKS": {
            "LOG_GPU_STATS": False,
            "COLLAPSE_SIGNS": False,
            "MEMORY_SUMMARY": {"PRINT_MEMORY_SUMMARY": False},
        },
        "CHECKPOINT": {"DIR": str(folder or ".")},
    }
    if loss is None:
        keys["LOSS"] = {"name": ""}
        keys["TRAINER"] = {"TRAIN_STEP_NAME": "loss_dict_train_step"}
    return keys


def _train(task: PythonTask, resolved: Resolved, quiet: bool) -> None:
    console = Screen(quiet=quiet or not is_primary())
    if task.folder is not None:
        run = Run(resolved, task.folder, task.device, console)
        resume(task, run)
        run.describe()
    place = RunPlace(task.folder or Path(), task.iteration, console)
    if is_primary() and not quiet:
        task.writers.append(ConsoleWriter(place))
    if is_primary() and task.folder is not None:
        task.writers.append(JsonLinesWriter(place))
    if task.done_training():
        task.close()
    else:
        loop.run(task)


def _merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = copy.deepcopy(dict(base))
    for key, value in over.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = _merge(merged[key], value) if both else copy.deepcopy(value)
    return merged


def _expect_resumable(data: Any) -> None:
    """Raise DataError for a loader whose order a resumed run could not repeat."""
    if not isinstance(data, DataLoader):
        return
    own = [each for each in (data, *samplers_of(data)) if getattr(each, "generator", None)]
    if own:
        raise DataError(
            f"data: the {type(own[0]).__name__} has its own `generator`, whose order a resumed run "
            f"could not repeat. Omit it: fit's seed decides the order."
        )
    if data.persistent_workers:
        raise DataError(
            "data: the DataLoader has persistent_workers, whose random numbers depend on all "
            "epochs before, and a resumed run could not repeat them. Set persistent_workers=False, "
            "or give no folder."
        )
