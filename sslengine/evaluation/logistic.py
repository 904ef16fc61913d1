"""Multinomial logistic regression for several penalties at once, on the features' device.

    mean over the samples of -log p(label)  +  penalty / 2 * |W|^2        (the bias has no penalty)

in float64. Features are read in pieces: they may be a store's rows, which do not fit in memory.
Ranks may share them: each reads its rows, and the gradient is summed over ranks, so all of them
take the same steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any

import torch
from torch import Tensor

from sslengine.distributed.collectives import gather, sum_in_place
from sslengine.evaluation.features import Rows, blocks, own_share
from sslengine.evaluation.minimise import Precondition, minimise

# Numbers of features in memory in float64, 512 MB; more are read again for each evaluation.
KEPT = 2**26
AT_ONCE = 5  # penalties
# Numbers of a piece of the features, which two products read: 4 MB stay in a processor's cache.
IN_CACHE = 2**19
# Of logits: 64 MB.
LOGITS = 2**23
FEWEST = 64  # rows of a piece
MOST_COLUMNS = 4096  # of which the products are computed
TINY = 1e-6  # of a curvature


@dataclass(frozen=True)
class Classifier:
    weight: Tensor  # features x classes
    bias: Tensor

    def scores(self, features: Tensor) -> Tensor:
        return features @ self.weight.to(features.dtype) + self.bias.to(features.dtype)


@dataclass(frozen=True)
class Fit:
    classifiers: list[Classifier]  # one for each penalty
    converged: list[bool]
    iterations: int


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
        """On all ranks."""
        return len(self.labels)

    @cached_property
    def _whole(self) -> Tensor | None:
        few = len(self._own) * self.width <= KEPT
        return self._scaled(self.features[self._own.start : self._own.stop]) if few else None

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

    def pieces(self, rows: int) -> Iterator[tuple[Tensor, Tensor]]:
        """This rank's samples."""
        first, whole = self._own.start, self._whole
        for start in range(first, self._own.stop, rows):
            stop = min(start + rows, self._own.stop)
            some = (self._scaled(self.features[start:stop]) if whole is None
                    else whole[start - first : stop - first])  # fmt: skip
            yield some, self.labels[start:stop]

    def summed(self, value: Tensor) -> Tensor:
        """In place, over the ranks that share the samples."""
        return sum_in_place(value) if self.over_ranks else value

    def _scaled(self, rows: Any) -> Tensor:
        found = matrix(rows, self.labels.device)
        found = found if self.scale is None else (found - self.scale[0]) / self.scale[1]
        return found.to(self.dtype)


def matrix(rows: Any, device: torch.device | None = None) -> Tensor:
    """In float64, a row for each image."""
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


def fit(
    samples: Samples,
    penalties: Sequence[float],
    start: Classifier | None = None,
    tolerance: float = 1e-6,
    max_iterations: int = 1000,
) -> Fit:
    """tolerance: of the largest component of the gradient, when a classifier has converged."""
    width, classes = samples.width, samples.classes
    device = samples.labels.device
    first = torch.zeros(width + 1, classes, dtype=torch.float64, device=device)
    if start is not None:
        first[:width], first[width] = start.weight, start.bias
    strength = torch.tensor(penalties, dtype=torch.float64, device=device)

    def evaluate(points: Tensor, which: Tensor) -> tuple[Tensor, Tensor]:
        return _evaluate(samples, points.view(-1, width + 1, classes), strength[which])

    points = first.flatten().repeat(len(penalties), 1)
    about = curvature(samples, penalties, 1 / classes)
    found = minimise(evaluate, points, tolerance, max_iterations, about)
    classifiers = [Classifier(each[:width], each[width])
                   for each in found.points.view(-1, width + 1, classes)]  # fmt: skip
    return Fit(classifiers, found.converged.tolist(), found.iterations)


def _evaluate(samples: Samples, points: Tensor, penalties: Tensor) -> tuple[Tensor, Tensor]:
    """Of several classifiers the objective and its gradient: one product for all of them."""
    problems, _, classes = points.shape
    weight, bias = points[:, :-1], points[:, -1]
    together = weight.transpose(0, 1).reshape(samples.width, problems * classes)
    together, bias = together.to(samples.dtype), bias.to(samples.dtype)
    value, gradient = torch.zeros_like(penalties), torch.zeros_like(points)
    for features, labels in samples.pieces(rows_at_once(problems * classes, samples.width)):
        logits = (features @ together).view(-1, problems, classes) + bias
        chance = logits.log_softmax(dim=2)
        place = labels.view(-1, 1, 1).expand(-1, problems, 1)
        value -= chance.gather(2, place).sum(dim=(0, 2), dtype=torch.float64) / len(samples)
        error = chance.exp_()
        error.scatter_add_(2, place, error.new_full((), -1.0).expand_as(place))
        error /= len(samples)
        # In this order: two and a half times as fast on a CPU as with the features transposed.
        change = (error.flatten(1).T @ features).view(problems, classes, -1)
        gradient[:, :-1] += change.transpose(1, 2)
        gradient[:, -1] += error.sum(dim=0)
    value, gradient = samples.summed(value), samples.summed(gradient)
    value += penalties / 2 * weight.square().sum(dim=(1, 2))
    gradient[:, :-1] += penalties.view(-1, 1, 1) * weight
    return value, gradient.flatten(1)


def curvature(samples: Samples, penalties: Sequence[float], share: float) -> Precondition | None:
    """By the second moments of the features, as if each sample had the same curvature, `share`.

    None where there are too many columns for it to save time.
    """
    width = samples.width + 1
    if width > MOST_COLUMNS:
        return None
    own = torch.eye(width, dtype=torch.float64, device=samples.labels.device)
    added = own.clone()
    added[-1, -1] = 0.0  # the bias has no penalty
    known = {each: torch.linalg.cholesky(share * samples.moments + each * added + TINY * own)
             for each in {*penalties}}  # fmt: skip

    def solve(gradients: Tensor, which: Tensor) -> Tensor:
        pairs = zip(gradients.view(len(which), width, -1), which.tolist())
        found = [torch.cholesky_solve(each, known[penalties[number]]) for each, number in pairs]
        return torch.stack(found).flatten(1)

    return solve


def rows_at_once(logits: int, width: int) -> int:
    """logits: of a row."""
    return max(FEWEST, min(LOGITS // logits, IN_CACHE // width))


def fit_path(
    samples: Samples, penalties: Sequence[float], at_once: int = AT_ONCE, **how: Any
) -> Fit:
    """As `fit`, from strong penalties to weak ones, so many at once; each starts where the weakest
    before it has ended."""
    order = sorted(range(len(penalties)), key=lambda place: -penalties[place])
    found: dict[int, tuple[Classifier, bool]] = {}
    start, iterations = None, 0
    for first in range(0, len(order), at_once):
        some = order[first : first + at_once]
        part = fit(samples, [penalties[place] for place in some], start, **how)
        found |= dict(zip(some, zip(part.classifiers, part.converged)))
        start, iterations = part.classifiers[-1], iterations + part.iterations
    classifiers, converged = zip(*(found[place] for place in range(len(penalties))))
    return Fit([*classifiers], [*converged], iterations)
