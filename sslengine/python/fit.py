"""`sslengine.fit`: train from objects, with the engine's loop, train steps and hooks.

session = sslengine.fit(SimCLR(sslengine.trunk("resnet50")), "~/photos", epochs=100)
session = sslengine.fit(model, samples, loss=loss, optimizer=optimizer, epochs=10, ranks=2)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from omegaconf import DictConfig
from torch import nn
from torch.utils.data import DataLoader

from sslengine import catalog  # noqa: F401 - declares what ships with sslengine
from sslengine.checkpoint.lock import owned
from sslengine.checkpoint.rng import rng_state, set_rng_state
from sslengine.config.options import DistributedOptions, RunOptions
from sslengine.config.resolve import Resolved, resolve_dict
from sslengine.config.sections import read
from sslengine.config.users_code import code_of_object
from sslengine.data.given import Collate, DatasetFeed, LoaderFeed, make_feed, samplers_of
from sslengine.distributed.process_group import LAUNCHED
from sslengine.distributed.ranks import is_primary, world_size
from sslengine.dotted import nest
from sslengine.engine import loop
from sslengine.engine.build import place_model
from sslengine.engine.parts import Feeds, PartsOfConfig
from sslengine.engine.passes import trunk_of
from sslengine.engine.services import Services, services_of
from sslengine.engine.task import SelfSupervisionTask
from sslengine.engines.run import Run
from sslengine.engines.train import train_prepared
from sslengine.errors import ConfigError, DataError
from sslengine.launch.folder import expect_run_folder
from sslengine.launch.rank import run_engine
from sslengine.methods.base import Method
from sslengine.methods.foreign import FunctionLoss
from sslengine.models.build import freeze_parameters
from sslengine.models.model import Model
from sslengine.models.options import ModelOptions
from sslengine.models.sync_batchnorm import synchronise
from sslengine.monitor.console import ConsoleWriter, Screen
from sslengine.monitor.writers import RunPlace
from sslengine.optim.build import ScheduledOptimizer
from sslengine.python.files import is_images
from sslengine.python.local_ranks import count_ranks, fit_on_ranks
from sslengine.python.methods import (
    GIVES_LOSSES,
    find_view_trunk,
    keys_of_method,
    resolve_of_images,
)
from sslengine.python.passes import choose_device, join_others
from sslengine.python.session import History, KeepHistory, Session, as_module

Loss = Callable[..., Any]


def fit(
    model: nn.Module,
    data: Any,
    *,
    loss: Loss | None = None,
    optimizer: torch.optim.Optimizer | Mapping[str, Any] | None = None,
    trunk: str | None = None,
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
    trunk: the submodule of a module without `loss` whose output are its features; default: its
        trunk, backbone or encoder.
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
    gives_losses = loss is None and isinstance(model, nn.Module)
    asked.made_with = find_view_trunk(model) if gives_losses else None
    if trunk is not None:
        model.trunk_part = trunk  # type: ignore[assignment]
        trunk_of(model)  # is it there?
    asked.of_images = asked.made_with is not None and is_images(data)
    asked.out = None if out is None else Path(out).expanduser()
    asked.feeding = {
        "batch_size": batch_size or 32, "collate_fn": collate_fn, "workers": workers or 0
    }  # fmt: skip
    count = count_ranks(ranks)
    return fit_here(asked) if count == 1 else fit_on_ranks(asked, count, fit_here)


def fit_here(asked: Any) -> Session:
    """Train in this process, which may be one of several ranks, and return the session."""
    place = choose_device(asked.device)
    join_others(place)
    history, streams = History(), rng_state()
    with ExitStack() as opened:
        resolved = _resolve(asked, place, opened)
        if asked.out is not None:
            expect_run_folder(resolved.config)
            _expect_resumable(asked.data)
        lent = asked.made_with is not None
        parts = GivenParts(
            opened.enter_context(asked.made_with.lent()) if lent else asked.model,
            asked.model if lent else as_module(asked.loss),
            asked.optimizer if isinstance(asked.optimizer, torch.optim.Optimizer) else None,
            {"TRAIN": None if asked.of_images else asked.data, "TEST": asked.validation},
            {**asked.feeding, "drop_last": asked.drop_last, "shuffle": asked.shuffle},
            tuple(asked.hooks),
            (KeepHistory(history),),
        )
        try:
            task = PythonTask(resolved.config, asked.out, place, parts)
            task.prepare()
            with owned(asked.out) if asked.out is not None else nullcontext():
                _train(task, resolved, asked.quiet)
        finally:
            set_rng_state(streams)
    done = task.done_training()
    return Session(asked, history, task.iteration, done, place, task.parts.precision)


def _resolve(asked: Any, place: torch.device, opened: ExitStack) -> Resolved:
    keys: dict[str, Any] = {
        **({"OPTIMIZER": asked.optimizer} if isinstance(asked.optimizer, Mapping) else {}),
        "OPTIMIZER.accumulate": asked.accumulate,
        "DISTRIBUTED.NUM_PROC_PER_NODE": world_size(),
    }
    asked.place = {"cuda": "gpu", "mps": "mps"}.get(place.type, "cpu")
    if asked.made_with is not None:
        keys |= keys_of_method(asked.model, asked.made_with)
    elif asked.loss is None:
        keys |= GIVES_LOSSES
    if asked.of_images:
        return resolve_of_images(asked, keys, opened)
    _expect_samples(asked)
    keys |= {
        "OPTIMIZER.num_epochs": asked.epochs,
        "OPTIMIZER.num_iterations": asked.iterations,
        "SEED_VALUE": asked.seed,
        "TEST_MODEL": asked.validation is not None and asked.evaluate_every != 0,
        "TEST_EVERY_NUM_EPOCH": asked.evaluate_every or 1,
        "MACHINE.DEVICE": asked.place,
        "MACHINE.PRECISION": asked.precision or "fp32",
        "HOOKS.LOG_GPU_STATS": False,
        "HOOKS.COLLAPSE_SIGNS": asked.loss is None,
        "HOOKS.MEMORY_SUMMARY.PRINT_MEMORY_SUMMARY": False,
        "CHECKPOINT.DIR": str(asked.out or "."),
        # Another network than the config's is in no file of weights, and has no map of images.
        "CHECKPOINT.EXPORT_AT_END": asked.made_with is not None,
        "CHECKPOINT.REPORT_AT_END": asked.made_with is not None,
    }
    return resolve_dict(nest(keys, asked.values))


def _expect_samples(asked: Any) -> None:
    for given in (asked.model, asked.data):
        if isinstance(given, str | Path):
            raise ConfigError(
                f"fit: {given!r}: images are for a method that was made with sslengine.trunk(NAME);"
                f' for names: sslengine.train("~/photos", "METHOD", "resnet50").'
            )


def _train(task: PythonTask, resolved: Resolved, quiet: bool) -> None:
    console = Screen(quiet=quiet or not is_primary())
    if task.folder is not None:
        run = Run(resolved, task.folder, task.device, console)
        run_engine(run, partial(train_prepared, task))
        return
    if is_primary() and not quiet:
        task.writers.append(ConsoleWriter(RunPlace(Path(), task.iteration, console)))
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


# ---- the task of a run whose parts are objects; all else is as in a run from YAML


class GivenParts(NamedTuple):
    model: nn.Module
    loss: nn.Module
    # None: the config chooses it.
    optimizer: torch.optim.Optimizer | None
    # Keys TRAIN and TEST: a dataset or a loader; None: images, which the config names.
    data: Mapping[str, Any]
    # Arguments of make_feed.
    feeding: Mapping[str, Any]
    hooks: tuple[Any, ...] = ()
    # Called after metrics are written: they read a phase's metrics.
    readers: tuple[Any, ...] = ()


class PythonTask(SelfSupervisionTask):
    replayable = False  # it is made of objects, which no folder has

    def __init__(
        self, config: DictConfig, folder: Path | None, device: torch.device, given: GivenParts
    ) -> None:
        super().__init__(config, folder or Path(), device)
        self.folder, self.given = folder, given
        self.made_by = PartsOfObjects(config, folder, device, given=given)


@dataclass
class PartsOfObjects(PartsOfConfig):
    given: GivenParts = field(kw_only=True)

    def feed(self, split: str, training: bool, classes: Sequence[Any]) -> Any:
        given, seed = self.given, read(self.config, RunOptions).SEED_VALUE
        shuffle = training and given.feeding.get("shuffle", True)
        if given.data["TRAIN"] is None:
            return super().feed(split, training, classes)
        where = {"TRAIN": "data", "TEST": "validation"}[split]
        feeding = {**given.feeding, "shuffle": shuffle, "where": where}
        if not training:
            feeding |= {"drop_last": False, "whole": True}
        feed = make_feed(given.data[split], seed=seed, device=self.device, **feeding)
        if training and isinstance(given.loss, Method) and _uneven(feed):
            raise DataError(
                f"{where}: some batches of {feed.num_samples} samples do not divide evenly over "
                f"{world_size()} ranks, and {type(given.loss).__name__} compares the images of all "
                f"ranks, which needs equal batches. Give drop_last=True."
            )
        return feed

    def model(self) -> nn.Module:
        model = self._ready(self.given.model, "")
        return place_model(self.config, model, self.device) if isinstance(model, Model) else model

    def loss(self, feeds: Feeds, model: nn.Module) -> nn.Module:
        return self._ready(self.given.loss, "loss.")

    def _ready(self, part: nn.Module, prefix: str) -> nn.Module:
        options = read(self.config, ModelOptions)
        ranks_per_node = read(self.config, DistributedOptions).NUM_PROC_PER_NODE
        made = synchronise(part, options.SYNC_BN_CONFIG, ranks_per_node).to(self.device)
        freeze_parameters(made, options.NON_TRAINABLE_PARAMS, prefix)
        return made

    def optimizer(self, learner: nn.Module, epochs: float) -> Any:
        given = self.given.optimizer
        if given is None:
            return super().optimizer(learner, epochs)
        mine = {id(parameter) for parameter in learner.parameters()}
        if any(id(p) not in mine for group in given.param_groups for p in group["params"]):
            raise ConfigError(
                "optimizer: it has parameters that are neither the model's nor the loss's. Make it "
                "from model.parameters() and loss.parameters()."
            )
        return ScheduledOptimizer(given, [{} for _ in given.param_groups])

    def hooks_of_run(self) -> list[Any]:
        return [*super().hooks_of_run(), *self.given.hooks]

    def code(self) -> dict[str, str]:
        given = self.given
        loss = given.loss.function if isinstance(given.loss, FunctionLoss) else given.loss
        return {
            **super().code(),
            "model": code_of_object(given.model),
            "loss": code_of_object(loss),
        }

    def services_of_run(self) -> Services:
        readers = self.given.readers
        started = LAUNCHED in os.environ  # by `fit`, which then saves at Ctrl-C
        return services_of(self.config, self.run_dir, interrupts=started, readers=readers)


def _uneven(feed: DatasetFeed | LoaderFeed) -> bool:
    pairs = zip(feed.batch_sizes, feed.global_batch_sizes)
    return any(world_size() * size != of_all for size, of_all in pairs)
