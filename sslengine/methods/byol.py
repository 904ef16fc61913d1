"""BYOL: predict what a slow copy of the model makes of the other view.

Grill et al., Bootstrap Your Own Latent, 2020, equation 2, in both directions:

    loss = mean (2 - 2 cos(q(z_1), z'_2)) + mean (2 - 2 cos(q(z_2), z'_1))

z: the model's projection, q(z): its prediction, z': the projection of the teacher, which
takes no gradient and after each optimizer step follows the model with a momentum that
rises from `momentum` to 1.

Batches come from `simclr_collator`, the model ends in `predictor_head`. In the authors' code
each view passes model and teacher by itself: `MODEL.VIEWS_APART`. Without it a batch norm's
batch holds both.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from sslengine.config.facts import RunFacts
from sslengine.errors import TrainingError
from sslengine.hooks.events import Hook, TaskView
from sslengine.losses.cross_view import cross_view_cosine, projection_and_prediction
from sslengine.losses.momentum import follow, frozen_copy, rank_0_statistics, rising_momentum
from sslengine.losses.views import expect_two_views
from sslengine.methods.base import Method
from sslengine.registry import register_loss

NAME = "byol_loss"


@dataclass
class BYOLOptions:
    # Of the teacher, at the beginning; the paper has 0.996 for 1000 epochs, 0.99 for 300.
    momentum: float = 0.99

    def infer(self, facts: RunFacts) -> None:
        expect_two_views(facts, NAME)

    def check(self) -> Iterator[str]:
        if not 0 <= self.momentum <= 1:
            yield f"momentum: expected a number from 0 to 1, got {self.momentum}."


@register_loss(NAME, options=BYOLOptions)
class BYOLLoss(Method):
    teacher_part: ClassVar[str] = "teacher"
    teacher: nn.Module

    def __init__(self, options: BYOLOptions, run: RunFacts) -> None:
        super().__init__()
        self.momentum = options.momentum
        # The teacher's projections of this step's batch; the hook puts them here.
        self.targets: Tensor | None = None

    def attach(self, model: nn.Module) -> None:
        self.teacher = frozen_copy(model)

    def hooks(self) -> list[Hook]:
        return [BYOLTeacher(self)]

    def forward(self, output: Any, target: Any = None) -> Tensor:
        """output: [projection, prediction] of both views, (2B, D) each."""
        _, prediction = projection_and_prediction(output, NAME)
        targets, self.targets = self.targets, None
        if targets is None:
            raise TrainingError(
                f"{NAME} has no projections of the teacher for this batch: its hook has not run. "
                f"A task that uses this loss runs the hooks that `loss.hooks()` gives."
            )
        # The mean is over the rows of both directions, and the paper adds the directions.
        return 2 * (2 - 2 * cross_view_cosine(prediction, targets))


class BYOLTeacher(Hook):
    """The teacher looks at what the model looks at, and follows it."""

    def __init__(self, method: BYOLLoss) -> None:
        self.method = method

    def on_forward(self, task: TaskView) -> None:
        teacher = self.method.teacher
        with torch.no_grad(), task.precision.autocast():
            output = teacher(task.last_batch.sample["input"])
        projection, _ = projection_and_prediction(task.precision.as_full(output), NAME)
        self.method.targets = projection
        if task.train:
            rank_0_statistics(teacher)

    def on_update(self, task: TaskView) -> None:
        momentum = rising_momentum(self.method.momentum, task.where)
        follow(self.method.teacher, task.base_model, momentum)
