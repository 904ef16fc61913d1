"""Features with labels, as a minimiser reads them: in pieces, standardised or not.

They may be a store's rows, which do not fit in memory: what fits is kept, the rest is read again
for each evaluation. Ranks may share them: each reads its rows, and sums are over ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from functools import cached_property, reduce
from typing import Any

import torch
from torch import Tensor

from sslengine.distributed.collectives import gather, sum_in_place
from sslengine.evaluate.features import BLOCK, Rows, blocks, own_share

# Bytes of the host's memory that features take at the most; of a GPU half of what is free.
KEPT = 2**29
# Numbers of a piece of the features, which two products read: 4 MB stay in a processor's cache.
IN_CACHE = 2**19
# Of logits: 64 MB.
LOGITS = 2**23
FEWEST = 64  # rows of a piece


class Samples:
    """Features with labels, as the minimiser reads them: in float64, standardised or not."""

    def __init__(
        self,
        features: Rows,
        labels: Tensor,
        classes: int,
        scale: tuple[Tensor, Tensor] | None,
        dtype: torch.dtype = torch.float64,
        device: torch.device | None = None,
        over_ranks: bool = False,
    ) -> None:
        """scale: mean and deviation of each column. dtype: of the products with features."""
        self.features, self.classes, self.scale = features, classes, scale
        self.labels = labels.to(device)
        self.dtype, self.over_ranks = dtype, over_ranks
        self.width = matrix(features[0:1]).shape[1]
        self._own = own_share(len(labels), over_ranks)

    def __len__(self) -> int:
        """Count samples on all ranks."""
        return len(self.labels)

    @cached_property
    def single(self) -> Samples:
        """The same in single precision."""
        changed = copy(self)
        changed.__dict__.pop("_whole", None)
        changed.dtype = torch.float32
        return changed

    @cached_property
    def _whole(self) -> Tensor | None:
        """Filled in pieces, so that nothing is in memory twice; None: it does not fit."""
        if len(self._own) * self.width * self.dtype.itemsize > room(self.labels.device):
            return None
        found = torch.empty(len(self._own), self.width, dtype=self.dtype, device=self.labels.device)
        for start in range(0, len(found), BLOCK):
            some = self._own[start : start + BLOCK]
            found[start : start + BLOCK] = self._scaled(self.features[some.start : some.stop])
        return found

    @cached_property
    def moments(self) -> Tensor:
        """The mean product of each two columns, of which the last one is 1."""
        found = torch.zeros(self.width + 1, self.width + 1, dtype=torch.float64)
        found = found.to(self.labels.device)
        for features, _ in self.pieces(rows_at_once(self.width + 1, self.width)):
            found[:-1, :-1] += features.T @ features
            found[-1, :-1] += features.sum(dim=0)
        found[:-1, -1] = found[-1, :-1]
        found = self.summed(found) / len(self)
        found[-1, -1] = 1.0
        return found

    @cached_property
    def magnitude(self) -> float:
        """The root mean square of the largest column, and at least 1."""
        found = torch.zeros(self.width, dtype=torch.float64, device=self.labels.device)
        for features, _ in self.pieces(rows_at_once(self.width, self.width)):
            found += features.square().sum(dim=0)
        return max(1.0, float((self.summed(found).max() / len(self)).sqrt()))

    def pieces(self, rows: int) -> Iterator[tuple[Tensor, Tensor]]:
        """This rank's samples."""
        first, whole = self._own.start, self._whole
        for start in range(first, self._own.stop, rows):
            stop = min(start + rows, self._own.stop)
            some = (self._scaled(self.features[start:stop]) if whole is None
                    else whole[start - first : stop - first])  # fmt: skip
            yield some, self.labels[start:stop]

    def summed(self, value: Tensor) -> Tensor:
        """Sum in place over the ranks that share the samples."""
        return sum_in_place(value) if self.over_ranks else value

    def _scaled(self, rows: Any) -> Tensor:
        found = matrix(rows, self.labels.device)
        found = found if self.scale is None else (found - self.scale[0]) / self.scale[1]
        return found.to(self.dtype)


def room(device: torch.device) -> int:
    """Bytes for features that are read again and again."""
    return torch.cuda.mem_get_info(device)[0] // 2 if device.type == "cuda" else KEPT


def matrix(rows: Any, device: torch.device | None = None) -> Tensor:
    """Make rows of float64, one for each image."""
    return torch.as_tensor(rows).to(device).flatten(1).double()


@torch.no_grad()
def standardisation(
    features: Rows,
    rows: int = 2**14,
    device: torch.device | None = None,
    over_ranks: bool = False,
) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each column; 1 for a constant one."""
    among = own_share(len(features), over_ranks)
    first = matrix(features[0:1], device)
    found = first.new_zeros(3, first.shape[1])
    for each in blocks(features, rows, among):
        some = matrix(each, device)
        mean = some.mean(dim=0)
        square = (some - mean).square().sum(dim=0)
        found = _joined(found, torch.stack([torch.full_like(mean, len(some)), mean, square]))
    if over_ranks:
        every = gather(found.unsqueeze(0)).rows
        found = reduce(_joined, every[1:], every[0])
    count, mean, square = found
    deviation = (square / count).sqrt()
    # A constant column has a deviation of rounding errors.
    constant = deviation <= 10 * torch.finfo(torch.float64).eps * mean.abs()
    return mean, torch.where(constant, 1.0, deviation)


def _joined(one: Tensor, other: Tensor) -> Tensor:
    """Count, mean, and sum of squares around it, of two sets of rows together."""
    count = one[0] + other[0]
    change, share = other[1] - one[1], other[0] / count.clamp(min=1)
    square = one[2] + other[2] + change.square() * one[0] * share
    return torch.stack([count, one[1] + change * share, square])


def rows_at_once(logits: int, width: int) -> int:
    """logits: of a row."""
    return max(FEWEST, min(LOGITS // logits, IN_CACHE // width))
