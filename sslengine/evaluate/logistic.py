"""Multinomial logistic regression for several penalties at once, on the features' device.

    mean over the samples of -log p(label)  +  penalty / 2 * |W|^2        (the bias has no penalty)

to a gradient in float64. A large problem is solved in single precision first, unless the rounding
is far above the tolerance: it takes half the time, and on a GPU without fast float64 far less.
Samples are read in pieces, and shared by ranks: the gradient is summed over ranks, so all of them
take the same steps.

`fit_path` starts many penalties where the classifiers of near ones lead: on the line through the
nearest two, over the logarithm of the penalty. Every third penalty first, two at a time, from
strong to weak; then all others at once. So 45 penalties need about a third of the evaluations that
they need from zero, and evaluations of many penalties at once take less time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import log

import torch
from torch import Tensor

from sslengine.evaluate.minimise import HISTORY, Minimum, Precondition, minimise
from sslengine.evaluate.samples import Samples, rows_at_once

MOST_COLUMNS = 4096  # of which the products are computed
TINY = 1e-6  # of a curvature
# Numbers of features, below which single precision saves no time.
LARGE = 2**20
# Of the gradient in single precision, for columns of deviation 1.
ROUNDING = 1e-6
EVERY, PAIR = 3, 2
# From a classifier, in distances of the two: unevenly spaced penalties may lead far away.
FURTHEST = 2.0
# Bytes of the minimiser: all that it knows of a penalty are so many classifiers.
STATE, CLASSIFIERS = 2**29, 2 * HISTORY + 16


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


def fit(
    samples: Samples,
    penalties: Sequence[float],
    start: Classifier | None = None,
    tolerance: float = 1e-6,
    max_iterations: int = 1000,
) -> Fit:
    """Fit each penalty from one start.

    tolerance: of the largest component of the gradient, when a classifier has converged.
    """
    first = no_classifier(samples)
    if start is not None:
        first[:-1], first[-1] = start.weight, start.bias
    points = first.repeat(len(penalties), 1, 1)
    found = solve(samples, penalties, points, tolerance, max_iterations)
    return Fit(classifiers_of(found.points), found.converged.tolist(), found.iterations)


def fit_path(
    samples: Samples,
    penalties: Sequence[float],
    tolerance: float = 1e-6,
    max_iterations: int = 1000,
) -> Fit:
    """Fit many penalties, with max_iterations of each; the classifiers have the samples' type."""
    known: dict[float, Tensor] = {}
    converged: dict[float, bool] = {}
    iterations = 0
    for some in _rounds(sorted({*penalties}, reverse=True), count_at_once(samples)):
        starts = torch.stack([_start(samples, known, each) for each in some])
        found = solve(samples, some, starts, tolerance, max_iterations)
        known |= zip(some, found.points.to(samples.dtype))
        converged |= zip(some, found.converged.tolist())
        iterations += found.iterations
    classifiers = classifiers_of(known[each] for each in penalties)
    return Fit(classifiers, [converged[each] for each in penalties], iterations)


def count_at_once(samples: Samples) -> int:
    """Count the penalties with which the minimiser stays within STATE."""
    width = samples.width + 1
    return max(1, STATE // (8 * width * (CLASSIFIERS * samples.classes + width)))


def _rounds(order: Sequence[float], most: int) -> Iterator[list[float]]:
    first = order[::EVERY]
    rest = [each for place, each in enumerate(order) if place % EVERY]
    for some, size in ((first, min(PAIR, most)), (rest, most)):
        for start in range(0, len(some), size):
            yield [*some[start : start + size]]


def _start(samples: Samples, known: Mapping[float, Tensor], penalty: float) -> Tensor:
    near = sorted(known, key=lambda each: abs(log(each / penalty)))[:2]
    if len(near) < 2:
        return known[near[0]].double() if near else no_classifier(samples)
    one, other = near
    share = max(log(penalty / one) / log(other / one), -FURTHEST)
    return torch.lerp(known[one].double(), known[other].double(), share)


def no_classifier(samples: Samples) -> Tensor:
    """Return zeros: the last row is the bias."""
    shape, device = (samples.width + 1, samples.classes), samples.labels.device
    return torch.zeros(shape, dtype=torch.float64, device=device)


def classifiers_of(points: Iterable[Tensor]) -> list[Classifier]:
    return [Classifier(each[:-1], each[-1]) for each in points]


def solve(
    samples: Samples,
    penalties: Sequence[float],
    points: Tensor,
    tolerance: float,
    max_iterations: int,
) -> Minimum:
    """Minimise from `points`, (penalties, features + 1, classes); the last row is the bias."""
    rounded = _tolerance_in_single(samples, tolerance)
    rough = samples.single if rounded else samples
    about = curvature(rough, penalties, 1 / samples.classes)
    strength = torch.tensor(penalties, dtype=torch.float64, device=points.device)

    def minimised(of: Samples, points: Tensor, tolerance: float, most: int) -> Minimum:
        def evaluate(flat: Tensor, which: Tensor) -> tuple[Tensor, Tensor]:
            return _evaluate(of, flat.view(-1, *points.shape[1:]), strength[which])

        found = minimise(evaluate, points.flatten(1), tolerance, most, about)
        return found._replace(points=found.points.view_as(points))

    if not rounded:
        return minimised(samples, points, tolerance, max_iterations)
    near = minimised(rough, points, rounded, max_iterations)
    found = minimised(samples, near.points, tolerance, max_iterations - near.iterations)
    return found._replace(iterations=near.iterations + found.iterations)


def _tolerance_in_single(samples: Samples, tolerance: float) -> float:
    """Return the tolerance in single precision; 0: it is already that, or would save no time."""
    if samples.dtype != torch.float64 or len(samples) * samples.width < LARGE:
        return 0.0
    rounding = ROUNDING * samples.single.magnitude
    # Otherwise most of the way is left.
    return max(0.9 * tolerance, rounding) if rounding < 10 * tolerance else 0.0


def _evaluate(samples: Samples, points: Tensor, penalties: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the objectives of several classifiers and their gradients by one product."""
    problems, _, classes = points.shape
    weight, bias = points[:, :-1], points[:, -1]
    together = weight.transpose(0, 1).reshape(samples.width, problems * classes)
    together, bias = together.to(samples.dtype), bias.to(samples.dtype)
    value, gradient = torch.zeros_like(penalties), torch.zeros_like(points)
    for features, labels in samples.pieces(rows_at_once(problems * classes, samples.width)):
        logits = (features @ together).view(-1, problems, classes) + bias
        chance = logits.log_softmax(dim=2)
        place = labels.view(-1, 1, 1).expand(-1, problems, 1)
        value -= chance.gather(2, place).sum(dim=(0, 2), dtype=torch.float64)
        error = chance.exp_()
        error.scatter_add_(2, place, error.new_full((), -1.0).expand_as(place))
        # In this order: two and a half times as fast on a CPU as with the features transposed.
        change = (error.flatten(1).T @ features).view(problems, classes, -1)
        gradient[:, :-1] += change.transpose(1, 2)
        gradient[:, -1] += error.sum(dim=0)
    value, gradient = (samples.summed(each) / len(samples) for each in (value, gradient))
    value += penalties / 2 * weight.square().sum(dim=(1, 2))
    gradient[:, :-1] += penalties.view(-1, 1, 1) * weight
    return value, gradient.flatten(1)


def curvature(samples: Samples, penalties: Sequence[float], share: float) -> Precondition | None:
    """Precondition by the features' second moments, as if each sample had the curvature `share`.

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
