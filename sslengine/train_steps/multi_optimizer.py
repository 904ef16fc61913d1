"""`multi_optimizer_train_step`: several losses, several optimizers, in one step.

The loss returns a dict of named losses. Each optimizer has parameters that it owns, by patterns on
their names, and losses that it follows:

    config.TRAINER.multi_optimizer_train_step.OPTIMIZERS:
      trunk:      {parameters: [trunk.*], losses: [contrastive, variance], name: lars, ...}
      projector:  {parameters: [heads.*, loss.*], losses: [contrastive], name: adamw, ...}

The rest of each is what config.OPTIMIZER takes. Gradients are all taken at the same weights,
then the optimizers step in this order. Cost: one backward pass for each distinct set of losses.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import reduce
from operator import add
from typing import TYPE_CHECKING, Any

import torch
from omegaconf import DictConfig
from torch import Tensor, nn

from sslengine.config.sections import read
from sslengine.errors import ConfigError
from sslengine.models.options import ModelOptions
from sslengine.optim.build import build_optimizer
from sslengine.optim.learner import learner_of
from sslengine.optim.options import OwnedOptimizerOptions
from sslengine.optim.ownership import only, owned_parameters
from sslengine.optim.several import Owner, SeveralOptimizers
from sslengine.registry import register_train_step
from sslengine.train_steps.samples import Sample
from sslengine.train_steps.step import Loss, TrainStep, expect_numbers, expect_registered

if TYPE_CHECKING:
    from sslengine.task.task import SelfSupervisionTask

NAME = "multi_optimizer_train_step"
WHERE = f"config.TRAINER.{NAME}.OPTIMIZERS"


@dataclass
class MultiOptimizerOptions:
    # Each under a name of your own: `parameters`, `losses`, and keys as of config.OPTIMIZER.
    OPTIMIZERS: dict[str, OwnedOptimizerOptions] = field(default_factory=dict)

    def check(self) -> Iterator[str]:
        if not self.OPTIMIZERS:
            yield "OPTIMIZERS: expected one or more, each with its `parameters` and `losses`."


@register_train_step(NAME, options=MultiOptimizerOptions)
class MultiOptimizerTrainStep(TrainStep):
    reduces_by_hand = True  # DDP's hooks would follow the first of several backward passes

    def __init__(self, options: MultiOptimizerOptions) -> None:
        self.optimizers = options.OPTIMIZERS

    def build_optimizer(
        self, config: DictConfig, model: nn.Module, loss: nn.Module, device: torch.device,
        epochs: float,
    ) -> SeveralOptimizers:  # fmt: skip
        if read(config, ModelOptions).GRAD_CLIP.USE_GRAD_CLIP:
            raise ConfigError(
                f"config.MODEL.GRAD_CLIP: of several optimizers each clips its own gradients; "
                f"set {WHERE}.<name>.clip_norm."
            )
        everything = learner_of(model, loss)
        owners, patterns = [], {name: each.parameters for name, each in self.optimizers.items()}
        for name, owned in owned_parameters(everything, patterns, WHERE).items():
            options = self.optimizers[name]
            try:
                with only(everything, owned):
                    optimizer = build_optimizer(everything, options, device, epochs)
            except ConfigError as error:
                raise ConfigError(f"{WHERE}.{name}: {error}") from error
            parameters = [each.parameter for each in owned]
            losses = tuple(sorted(set(options.losses)))
            owners.append(Owner(name, optimizer, parameters, losses, options.clip_norm))
        return SeveralOptimizers(owners, WHERE)

    def losses(self, task: SelfSupervisionTask, output: Any, sample: Sample) -> dict[str, Tensor]:
        """Return several by their names, and as "loss", for the log, the sum of those followed."""
        given = self.call_loss(task, output, sample)
        losses = {"loss": given} if isinstance(given, Tensor) else dict(given)
        expect_numbers(type(task.parts.loss).__name__, losses)
        optimizer = task.parts.optimizer
        optimizer.check_losses(losses)
        if "loss" in losses:
            return losses
        return {"loss": reduce(add, (losses[name] for name in optimizer.losses)), **losses}

    def differentiate(self, task: SelfSupervisionTask, loss: Loss) -> None:
        """Compute each optimizer's gradients, by the losses that it follows."""
        assert not isinstance(loss, Tensor)
        parts, group = task.parts, task.state.group
        if group.first:
            parts.optimizer.zero_grad()
        if task.first_step:
            expect_registered(task, *(loss[name] for name in parts.optimizer.losses))
        parts.optimizer.backward(parts.precision, loss, group.weight)
        if not (parts.reduction.by_hand and group.last):
            parts.optimizer.finish_backward(over_ranks=False)

    def reduce(self, task: SelfSupervisionTask) -> None:
        task.parts.optimizer.finish_backward(over_ranks=True)
