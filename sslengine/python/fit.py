"""`sslengine.fit`: train from objects, with the engine's loop, train steps and hooks.

session = sslengine.fit(SimCLR(sslengine.trunk("resnet50")), "~/photos", epochs=100)
session = sslengine.fit(model, samples, loss=loss, optimizer=optimizer, epochs=10, ranks=2)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
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
from sslengine.dotted import nest
from sslengine.engine import loop
from sslengine.engines.run import Run
from sslengine.engines.train import resume, train_prepared
from sslengine.errors import ConfigError, DataError
from sslengine.launch.folder import expect_run_folder
from sslengine.launch.rank import run_engine
from sslengine.models.view_trunk import ViewTrunk
from sslengine.monitor.console import ConsoleWriter, Screen
from sslengine.monitor.writers import JsonLinesWriter, RunPlace
from sslengine.python.files import is_images, open_data
from sslengine.python.local_ranks import count_ranks, fit_on_ranks
from sslengine.python.methods import (
    GIVES_LOSSES,
    find_view_trunk,
    keys_of_method,
    resolve_of_images,
)
from sslengine.python.passes import choose_device, join_others
from sslengine.python.session import History, KeepHistory, Session, as_module, make_session
from sslengine.python.task import GivenParts, PythonTask

Loss = Callable[..., Any]


def fit(
    model: nn.Module,
    data: Any,
    *,
    loss: Loss | None = None,
    optimizer: torch.optim.Optimizer | Mapping[str, Any] | None = None,
    epochs: int | None = None,
    iterations: int | None = None,
    validation: Any = None,
    evaluate_every: int | None = None,
    test: Any = None,
    recipe: str | None = None,
    batch_size: int | None = None,
    shuffle: bool = True,
    drop_last: bool = False,
    collate_fn: Collate | None = None,
    workers: int | None = None,
    accumulate: int = 1,
    hooks: Sequence[Any] = (),
    ranks: int | str = 1,
    device: str | torch.device | None = None,
    precision: str | None = None,
    out: str | Path | None = None,
    seed: int = 0,
    quiet: bool = False,
    values: Mapping[str, Any] | None = None,
) -> Session:
    """Train the model in place and return a session with it and its history.

    model: a method that was made with `sslengine.trunk(...)`; a module that takes a batch and
        returns its losses; or with `loss` any module.
    data: images, as `sslengine.train` takes them, for what has such a trunk; or a dataset of
        (input, target), or a loader of batches.
    loss: (output, target) -> a number, or a dict with `loss` and its parts; or a method,
        (output, sample, step), which is trained too.
    optimizer: a torch optimizer over model.parameters() (and the loss's, if it has any), whose
        learning rate stays constant; or a dict with the keys of config.OPTIMIZER. Of images the
        recipe has one.
    epochs or iterations: the length of the whole run; of images the recipe has one.
    validation: a dataset or loader to test on; of images a share that is left out, such as 0.1.
    evaluate_every: epochs between two tests on `validation`, of images between two evaluations of
        their features; 0: never. Default: 1, of images 0.
    test: for session.predict.
    recipe: of images: views, optimizer and length, as `sslengine train --recipe`.
    batch_size: on each rank; default: 32, of images what fits the machine.
    shuffle, drop_last, collate_fn, workers: how each rank reads a dataset.
    ranks: processes of this machine to train on; "auto": one for each GPU.
    out: a folder for checkpoints and metrics.jsonl; the same call resumes from it. None: no files.
    quiet: print nothing of its progress. values: any other keys under `config` in YAML.
    """
    asked = SimpleNamespace(**locals())
    count = count_ranks(ranks)
    return fit_here(asked) if count == 1 else fit_on_ranks(asked, count, fit_here)


def fit_here(asked: Any) -> Session:
    """Train in this process, which may be one of several ranks, and return the session."""
    place = choose_device(asked.device)
    join_others(place)
    made_with = find_view_trunk(asked.model) if asked.loss is None else None
    history, streams = History(), rng_state()
    with ExitStack() as opened:
        resolved, data = _resolve(asked, place, made_with, opened)
        run_dir = None if asked.out is None else Path(asked.out).expanduser()
        if run_dir is not None:
            expect_run_folder(resolved.config)
            _expect_resumable(asked.data)
        method: nn.Module = asked.model
        model = method if made_with is None else opened.enter_context(made_with.lent())
        feeding = {
            "batch_size": asked.batch_size or 32, "drop_last": asked.drop_last,
            "collate_fn": asked.collate_fn, "workers": asked.workers or 0, "shuffle": asked.shuffle,
        }  # fmt: skip
        parts = GivenParts(
            model,
            as_module(asked.loss) if made_with is None else method,
            asked.optimizer if isinstance(asked.optimizer, torch.optim.Optimizer) else None,
            {"TRAIN": data, "TEST": asked.validation},
            feeding,
            tuple(asked.hooks),
            (KeepHistory(history),),
        )
        try:
            task = PythonTask(resolved.config, run_dir, place, parts)
            task.prepare()
            with owned(run_dir) if run_dir is not None else nullcontext():
                _train(task, resolved, asked.quiet, of_config=made_with is not None)
        finally:
            set_rng_state(streams)
    complete, precision = task.done_training(), task.parts.precision
    return make_session(asked, history, task.iteration, complete, place, precision)


def _resolve(
    asked: Any, place: torch.device, made_with: ViewTrunk | None, opened: ExitStack
) -> tuple[Resolved, Any]:
    """Return the config of the run, and the samples or batches; None: the config names images."""
    keys: dict[str, Any] = {
        **({"OPTIMIZER": asked.optimizer} if isinstance(asked.optimizer, Mapping) else {}),
        "OPTIMIZER.accumulate": asked.accumulate,
        "DISTRIBUTED.NUM_PROC_PER_NODE": world_size(),
    }
    if made_with is not None:
        keys |= keys_of_method(asked.model, made_with)
        if is_images(asked.data):
            return _resolve_of_images(asked, place, made_with, opened, keys), None
    elif asked.loss is None:
        keys |= GIVES_LOSSES
    _expect_samples(asked)
    keys |= {
        "OPTIMIZER.num_epochs": asked.epochs,
        "OPTIMIZER.num_iterations": asked.iterations,
        "SEED_VALUE": asked.seed,
        "TEST_MODEL": asked.validation is not None and asked.evaluate_every != 0,
        "TEST_EVERY_NUM_EPOCH": asked.evaluate_every or 1,
        "MACHINE.DEVICE": _name(place),
        "MACHINE.PRECISION": asked.precision or "fp32",
        "HOOKS.LOG_GPU_STATS": False,
        "HOOKS.COLLAPSE_SIGNS": asked.loss is None,
        "HOOKS.MEMORY_SUMMARY.PRINT_MEMORY_SUMMARY": False,
        "CHECKPOINT.DIR": str(asked.out or "."),
    }
    return resolve_dict(nest(keys, asked.values)), asked.data


def _resolve_of_images(
    asked: Any, place: torch.device, made_with: ViewTrunk, opened: ExitStack, keys: dict[str, Any]
) -> Resolved:
    of_samples = {"shuffle": True, "drop_last": False, "collate_fn": None}
    given = [name for name, usual in of_samples.items() if getattr(asked, name) is not usual]
    share = asked.validation is None or isinstance(asked.validation, float)
    if given or not share or (asked.epochs and asked.iterations):
        raise ConfigError(
            "fit: of images the recipe says how they are read: shuffle, drop_last and collate_fn "
            "belong to samples, `validation` is a share of the images, such as 0.1, and the length "
            "is epochs=... or iterations=...."
        )
    if asked.iterations:
        keys["OPTIMIZER.num_iterations"] = asked.iterations
    files = opened.enter_context(open_data(asked.data))
    of_train = {
        **vars(asked), "model": made_with.name, "size": made_with.size, "val": asked.validation,
        "device": _name(place), "gpus": world_size() if place.type == "cuda" else None,
        "values": {**keys, **(asked.values or {})},
    }  # fmt: skip
    return resolve_of_images(files, of_train, asked.evaluate_every)


def _name(place: torch.device) -> str:
    return {"cuda": "gpu", "mps": "mps"}.get(place.type, "cpu")


def _expect_samples(asked: Any) -> None:
    epochs, iterations = asked.epochs, asked.iterations
    if isinstance(asked.data, str | Path) or isinstance(asked.model, str):
        raise ConfigError(
            f"fit: {asked.model if isinstance(asked.model, str) else asked.data!r}: images are "
            f"for a method that was made with sslengine.trunk(NAME); for the names of a method and "
            f'a network: sslengine.train("~/photos", "METHOD", "resnet50").'
        )
    if (epochs is None) == (iterations is None):
        said = "neither" if epochs is None else f"epochs={epochs} and iterations={iterations}"
        raise ConfigError(
            f"fit: give the length of the run as epochs=... or as iterations=...; got {said}."
        )


def _train(task: PythonTask, resolved: Resolved, quiet: bool, of_config: bool) -> None:
    """Train. of_config: the folder's config makes the network, for the page and the weights."""
    console = Screen(quiet=quiet or not is_primary())
    if task.folder is not None:
        run = Run(resolved, task.folder, task.device, console)
        if of_config:
            run_engine(run, partial(train_prepared, task))
            return
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
