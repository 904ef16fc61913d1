"""What methods that own their network (whole.py) are written with; `sslengine` has it all.

Rows are views x images x width. `gather`, losses and `Queue` count the images of all ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sslengine.distributed import collectives
from sslengine.losses import info_nce as formula
from sslengine.losses.koleo import koleo
from sslengine.losses.masked_patches import Center
from sslengine.losses.sinkhorn import sinkhorn
from sslengine.losses.views import swapped_prediction
from sslengine.methods.base import Method
from sslengine.methods.dino import DINOHead
from sslengine.methods.step import Step
from sslengine.methods.whole import EMA, Batch
from sslengine.models.view_trunk import ViewTrunk
from sslengine.registry import Requirements

__all__ = [
    "EMA", "Batch", "Center", "DINOHead", "Method", "Queue", "Requirements", "Step", "ViewTrunk",
    "cross_view", "gather", "info_nce", "koleo", "linear", "match_views", "mlp", "pass_apart",
    "sinkhorn",
]  # fmt: skip

RELU = partial(nn.ReLU, inplace=True)


class RowNetwork(nn.Sequential):
    """A network of rows: batch norms see those of all views as one batch."""

    def forward(self, x: Tensor) -> Tensor:
        rows: Any = x.flatten(0, -2)
        for layer in self:
            rows = layer(rows)
        found: Tensor = rows.unflatten(0, x.shape[:-1])
        return found


def mlp(
    *widths: int, norm: bool = True, end: nn.Module | None = None,
    activation: Callable[[], nn.Module] = RELU,
) -> RowNetwork:  # fmt: skip
    """Build linear layers; between them batch norm and activation. end: follows the last one."""
    layers: list[nn.Module] = []
    for place, width in enumerate(widths[1:-1]):
        layers += [nn.Linear(widths[place], width, bias=not norm)]
        layers += [nn.BatchNorm1d(width)] * norm + [activation()]
    last = [nn.Linear(widths[-2], widths[-1], bias=end is None), *([end] if end else [])]
    return RowNetwork(*layers, *last)


def pass_apart(network: nn.Module, views: Any) -> Tensor:
    """Pass each view as a separate batch: batch norms see one view at a time."""
    return torch.cat([network(views[number : number + 1]) for number in range(len(views))])


def gather(rows: Tensor, dim: int = 0) -> collectives.Gathered:
    """Gather the rows of all ranks, with gradient, and the number of this rank's first."""
    everyone, start = collectives.gather(rows.movedim(dim, 0).contiguous())
    return collectives.Gathered(everyone.movedim(0, dim), start)


def info_nce(anchors: Tensor, candidates: Tensor, start: int, temperature: float) -> Tensor:
    """Recognise each image's other views among the candidates, views x images of all ranks x width.

    The positive of an anchor is each other view in turn; the image's own views are no negatives.
    """
    (views, images), everyone = anchors.shape[:2], candidates.shape[1]
    number = start + torch.arange(images, device=anchors.device)
    same = torch.stack([number + view * everyone for view in range(views)])
    rows = [same.roll(-turn, dims=0).flatten() for turn in range(views)]
    pairs: list[tuple[Tensor, Tensor | None]] = [
        (rows[turn], torch.stack([*rows[:turn], *rows[turn + 1 :]], dim=1))
        for turn in range(1, views)
    ]
    return formula.info_nce(anchors.flatten(0, 1), candidates.flatten(0, 1), pairs, temperature)


def match_views(anchors: Tensor, candidates: Tensor, start: int, temperature: float) -> Tensor:
    """Recognise each of 2 x images x width in the other view among all ranks' images."""
    logits = anchors @ candidates.flip(0).mT / temperature
    own = torch.arange(start, start + anchors.shape[1], device=anchors.device)
    return F.cross_entropy(logits.flatten(0, 1), own.repeat(2))


def cross_view(targets: Tensor, scores: Tensor) -> Tensor:
    """Predict the targets of the first views, distributions, from the scores of each other view."""
    return swapped_prediction(targets, scores.log_softmax(dim=-1), range(len(targets)))


def linear(step: Step, start: float, end: float, epochs: int) -> float:
    """Return what rises or falls from start to end in so many epochs."""
    return start + (end - start) * min(1.0, step.epoch / max(1, epochs - 1))


class Queue(nn.Module):
    """Rows of unit length of earlier batches of all ranks; the oldest are replaced first."""

    rows: Tensor

    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        self.register_buffer("rows", F.normalize(torch.randn(length, width), dim=1))

    def push(self, rows: Tensor, step: Step) -> None:
        """Put rows of all ranks in, in train steps."""
        if step.train:
            new = collectives.gather(rows.detach()).rows
            self.rows = torch.cat([new, self.rows])[: len(self.rows)]
