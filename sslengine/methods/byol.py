"""BYOL: predict the teacher's projection of the other view.

Grill et al., Bootstrap Your Own Latent, 2020, equation 2, in both directions:

    loss = mean (2 - 2 cos(q(z_1), z'_2)) + mean (2 - 2 cos(q(z_2), z'_1))

z: the model's projection, q(z): its prediction, z': the projection of the teacher, a copy of
the model without gradient. After each optimizer step it is averaged with the model, with a
momentum that rises from `momentum` to 1.

Batches come from `simclr_collator`, the model ends in `predictor_head`. In the authors' code
each view passes model and teacher separately: `MODEL.VIEWS_APART`. Without it a batch norm's
batch holds both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from sslengine.config.facts import RunFacts
from sslengine.config.ranges import share
from sslengine.losses.views import cross_view_cosine, projection_and_prediction
from sslengine.methods.base import Method, Step
from sslengine.methods.teacher import Teacher
from sslengine.models.heads.mlp import PredictorHead
from sslengine.registry import register_loss

NAME = "byol_loss"


@dataclass
class BYOLOptions:
    # The teacher's momentum at the start; the paper has 0.996 for 1000 epochs, 0.99 for 300.
    momentum: float = share(0.99)


class _Target(Teacher):
    """Its predictions are not used."""

    def attach(self, model: nn.Module) -> None:
        super().attach(model)
        for head in self.module.modules():
            if isinstance(head, PredictorHead):
                head.predicts = False


@register_loss(NAME, options=BYOLOptions, views=2)
class BYOLLoss(Method):
    def __init__(self, options: BYOLOptions, run: RunFacts) -> None:
        super().__init__()
        self.teacher = _Target(options.momentum)

    def forward(self, output: Any, sample: Any, step: Step) -> Tensor:
        """output: [projection, prediction] of both views, (2B, D) each."""
        _, prediction = projection_and_prediction(output, NAME)
        targets = self.teacher(sample["input"], step)
        if not isinstance(targets, Tensor):  # of another head, which always predicts
            targets, _ = projection_and_prediction(targets, NAME)
        # The mean is over both directions; the paper adds them.
        return 4 - 4 * cross_view_cosine(prediction, targets)
