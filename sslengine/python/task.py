"""The task of a run whose parts are given as objects: all else is that of a run from YAML."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from omegaconf import DictConfig
from torch import nn

from sslengine.config.sections import read
from sslengine.data.given import DatasetFeed, LoaderFeed, make_feed
from sslengine.distributed.ranks import world_size
from sslengine.errors import ConfigError, DataError
from sslengine.methods.base import Method
from sslengine.models.build import freeze_parameters
from sslengine.models.options import ModelOptions
from sslengine.optim.scheduled import ScheduledOptimizer
from sslengine.services.order import Services, services_of
from sslengine.task.set_loss import set_loss
from sslengine.task.task import SelfSupervisionTask

Feed = DatasetFeed | LoaderFeed


class Parts(NamedTuple):
    model: nn.Module
    loss: nn.Module
    # torch's, already made; None: the config says which.
    optimizer: torch.optim.Optimizer | None
    # By TRAIN and TEST: what is given, a data set or a loader.
    data: Mapping[str, Any]
    # Arguments of make_feed.
    feeding: Mapping[str, Any]
    hooks: tuple[Any, ...] = ()
    # Told after metrics are written: they read what the engine has made of a phase.
    readers: tuple[Any, ...] = ()


class PythonTask(SelfSupervisionTask):
    def __init__(
        self, config: DictConfig, folder: Path | None, device: torch.device, parts: Parts
    ) -> None:
        super().__init__(config, folder or Path(), device)
        self.parts, self.folder = parts, folder

    def _make_feed(self, split: str, training: bool) -> Feed:
        where = {"TRAIN": "data", "TEST": "validation"}[split]
        shuffle = training and self.parts.feeding.get("shuffle", True)
        feeding = {**self.parts.feeding, "shuffle": shuffle, "where": where}
        if not training:
            feeding["drop_last"] = False
        feed = make_feed(self.parts.data[split], seed=self.seed, device=self.device, **feeding)
        if training and isinstance(self.parts.loss, Method) and _uneven(feed):
            raise DataError(
                f"{where}: {feed.num_samples} samples make unequal shares for {world_size()} ranks "
                f"in some batches, and {type(self.parts.loss).__name__} compares the images of all "
                f"ranks, which needs equal ones. Give drop_last=True."
            )
        return feed

    def mean_loss(self, feed: Feed) -> dict[str, float]:
        return set_loss(self, feed, self._splits[True])

    def _make_model(self) -> nn.Module:
        model = self.parts.model.to(self.device)
        freeze_parameters(model, read(self.config, ModelOptions).NON_TRAINABLE_PARAMS)
        return model

    def _make_loss(self) -> nn.Module:
        loss = self.parts.loss.to(self.device)
        freeze_parameters(loss, read(self.config, ModelOptions).NON_TRAINABLE_PARAMS, "loss.")
        return loss

    def _make_optimizer(self, epochs: float) -> Any:
        given = self.parts.optimizer
        if given is None:
            return super()._make_optimizer(epochs)
        mine = {
            id(parameter)
            for part in (self.base_model, self.loss)
            for parameter in part.parameters()
        }
        if any(id(p) not in mine for group in given.param_groups for p in group["params"]):
            raise ConfigError(
                "optimizer: it has parameters that are neither the model's nor the loss's. Make it "
                "of model.parameters() and loss.parameters()."
            )
        return ScheduledOptimizer(given, [{} for _ in given.param_groups])

    def _config_hooks(self) -> list[Any]:
        return [*super()._config_hooks(), *self.parts.hooks]

    def _make_services(self) -> Services:
        return services_of(self.config, self.folder, interrupts=False, readers=self.parts.readers)


def _uneven(feed: Feed) -> bool:
    pairs = zip(feed.batch_sizes, feed.global_batch_sizes)
    return any(world_size() * size != of_all for size, of_all in pairs)
