"""Preservation: training continues, and the trunk's features stay near those of its start
(`MODEL.PRESERVE`), with any method.

    loss <- loss + WEIGHT * mean over images x of 1 - cos(f(x), f0(x))

f0 is a frozen copy of the trunk f as it was when the run began: with the weights that it starts
from. cos is of the final features of each image's first view; with features of length 1, 1 - cos is
half of their squared distance. So the gradient is 0 at first (f = f0, without dropout and batch
norms), and grows with the distance. Cost: one more pass of the trunk over one view of each image,
forward and backward, and one of the copy, forward. Checkpoints hold the copy: a run resumes by it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from sslengine.models.build import trunk_with_heads
from sslengine.models.momentum import frozen_copy
from sslengine.models.view_trunk import ViewTrunk

NAME = "preservation"  # of the term in the log


class Preservation(nn.Module):
    """A part of the loss, which the engine attaches, saves and shards with it."""

    start: ViewTrunk

    def __init__(self, weight: float) -> None:
        super().__init__()
        self.scale = weight

    def attach(self, model: nn.Module) -> None:
        trunk = ViewTrunk(trunk_with_heads(model, "config.MODEL.PRESERVE"), 0)
        self._trunk = (trunk,)  # in a tuple, so that it is not a submodule
        self.start = frozen_copy(trunk).eval()

    def train(self, mode: bool = True) -> Preservation:
        return super().train(False)

    def forward(self, loss: Any, inputs: Any, images: int, step: Any) -> Any:
        """Add the term to the loss, a number or a dict of numbers. images: of this rank."""
        views = [_first_tensor(inputs)[:images]]
        (trunk,) = self._trunk
        with step.autocast():
            now, before = trunk(views), self.start(views)
        term = 1.0 - F.cosine_similarity(step.full(now), step.full(before), dim=-1).mean()
        losses = dict(loss) if isinstance(loss, Mapping) else {"loss": loss}
        return losses | {"loss": losses["loss"] + self.scale * term, NAME: term}


def _first_tensor(inputs: Any) -> Tensor:
    """Return the first views: of the first input, if they are several; of images in rows, all."""
    while not isinstance(inputs, Tensor):
        inputs = next(iter(inputs.values() if isinstance(inputs, Mapping) else inputs))
    return inputs
