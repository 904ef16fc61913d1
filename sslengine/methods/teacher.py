"""A momentum copy of the model, for methods with a teacher.

    self.teacher = Teacher(momentum=0.996)                  # in the method's __init__
    targets = self.teacher(sample["input"], step)           # in its forward

The engine makes the copy when the model is built, and updates it after each optimizer step:

    teacher = m * teacher + (1 - m) * model,    m from `momentum` to `end` along half a cosine or
                                                a line, or constant

Its output has no gradient; form and precision are those of the method's argument `output`.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, get_args

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from sslengine.distributed.ranks import world_size
from sslengine.errors import ConfigError, TrainingError
from sslengine.methods.step import Step
from sslengine.models.momentum import (
    Pairs,
    copy_buffers,
    follow,
    frozen_copy,
    pairs_of,
    rank_0_statistics,
    rising_momentum,
)
from sslengine.models.view_trunk import parameters_with_trunk

Schedule = Literal["cosine", "linear", "constant"]


def warmup(step: Step, low: float, high: float, updates: int, epochs: int = 0) -> float:
    """Return a temperature that rises evenly from low to high in so many epochs, or updates."""
    done, length = (step.epoch, epochs) if epochs else (step.num_updates, updates)
    return high if done >= length else low + done / max(1, length - 1) * (high - low)


class Teacher(nn.Module):
    # Attribute with the copy. VISSL's YAML refers to this name in checkpoints.
    teacher_part: ClassVar[str] = "module"
    module: nn.Module

    def __init__(
        self,
        momentum: float = 0.996,
        schedule: Schedule = "cosine",
        statistics: Literal["batch", "model"] = "batch",
        dropout: bool = True,
        end: float = 1.0,
    ) -> None:
        """
        schedule: cosine, linear: how the momentum rises to `end`; constant: it does not change.
        statistics: in training, batch norms use the batch's statistics and their own running
            ones (batch), or the model's running statistics, copied after each update (model).
        dropout: in training, apply dropout and stochastic depth as the model does.
        """
        super().__init__()
        for value, known in ((schedule, get_args(Schedule)), (statistics, ("batch", "model"))):
            if value not in known:
                raise ConfigError(f"Teacher: expected {' or '.join(known)}, got {value!r}.")
        self.momentum, self.schedule, self.end = momentum, schedule, end
        self.own_statistics, self.dropout = statistics == "batch", dropout
        self._model: tuple[nn.Module, ...] = ()  # in a tuple, so that it is not a submodule
        self._pairs: Pairs | None = None
        self._alone = True  # no other ranks

    def attach(self, model: nn.Module) -> None:
        self._model, self._pairs, self._alone = (model,), None, world_size() == 1
        self.module = frozen_copy(model)
        self.train(model.training)

    def train(self, mode: bool = True) -> Teacher:
        super().train(mode and self.dropout)
        self.training = mode
        if self.dropout != self.own_statistics:
            for each in self.modules():
                if isinstance(each, _NormBase):
                    each.training = mode and self.own_statistics
        return self

    @torch.no_grad()
    def forward(self, inputs: Any, step: Step) -> Any:
        if not self._model:
            raise TrainingError("Teacher: there is no model to copy yet: call attach(model) first.")
        with step.autocast():
            output = self.module(inputs)
        if not self._alone and step.train and self.own_statistics:
            rank_0_statistics(self.module)
        if isinstance(output, list) and len(output) == 1:
            output = output[0]
        return step.full(output)

    def after_update(self, step: Step) -> None:
        (model,) = self._model
        if self._pairs is None:
            self._pairs = pairs_of(self.module, parameters_with_trunk(model))
        follow(self._pairs, self._momentum_at(step.where))
        if not self.own_statistics:
            copy_buffers(self.module, model)
            rank_0_statistics(self.module)

    def _momentum_at(self, where: float) -> float:
        if self.schedule == "constant":
            return self.momentum
        return rising_momentum(self.momentum, where, self.end, self.schedule == "linear")
