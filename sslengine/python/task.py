"""The task of a run whose parts are Python objects; all else is as in a run from YAML."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from omegaconf import DictConfig
from torch import nn

from sslengine.config.options import DistributedOptions, RunOptions
from sslengine.config.sections import read
from sslengine.config.users_code import code_of_object
from sslengine.data.given import DatasetFeed, LoaderFeed, make_feed
from sslengine.distributed.process_group import LAUNCHED
from sslengine.distributed.ranks import world_size
from sslengine.engine.build import place_model
from sslengine.engine.parts import Feeds, PartsOfConfig
from sslengine.engine.services import Services, services_of
from sslengine.engine.task import SelfSupervisionTask
from sslengine.errors import ConfigError, DataError
from sslengine.methods.base import Method
from sslengine.methods.foreign import FunctionLoss
from sslengine.models.build import freeze_parameters
from sslengine.models.model import Model
from sslengine.models.options import ModelOptions
from sslengine.models.sync_batchnorm import synchronise
from sslengine.optim.build import ScheduledOptimizer

Feed = DatasetFeed | LoaderFeed


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


def _uneven(feed: Feed) -> bool:
    pairs = zip(feed.batch_sizes, feed.global_batch_sizes)
    return any(world_size() * size != of_all for size, of_all in pairs)
