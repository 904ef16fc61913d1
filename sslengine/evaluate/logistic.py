"""Logistic regression for several penalties at once, on the features' device.

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

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property, reduce
from math import log
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

from sslengine.distributed.collectives import gather, sum_in_place
from sslengine.evaluate.features import BLOCK, Chosen, Rows, blocks, own_share

HISTORY = 10
DECREASE, CURVATURE = 1e-4, 0.9
ROUNDING_OF_VALUE = 1e-7  # near the minimum a value decreases by less
TRIES = 40  # of a step's length

# (points, which problems) -> values, gradients. Points: problems x variables.
Evaluate = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
# (gradients, which problems) -> about their products with the inverse Hessians. With a good one the
# problems need few iterations.
Precondition = Callable[[Tensor, Tensor], Tensor]


# ---- the samples

# Bytes of the host's memory that features take at the most; of a GPU half of what is free.
KEPT = 2**29
# Numbers of a piece of the features, which two products read: 4 MB stay in a processor's cache.
IN_CACHE = 2**19
# Of logits: 64 MB.
LOGITS = 2**23
FEWEST = 64  # rows of a piece


class Samples:
    """Features with labels, as the minimiser reads them: in pieces, standardised or not.

    They may be a store's rows, which do not fit in memory: what fits is kept, the rest is read
    again for each evaluation. Ranks may share them: each reads its rows, sums are over ranks.
    """

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

    def choose(self, rows: Tensor, dtype: torch.dtype = torch.float64) -> Samples:
        """Return the samples of these numbers, which ascend."""
        chosen, labels = Chosen(self.features, rows), self.labels[rows.to(self.labels.device)]
        how = (self.labels.device, self.over_ranks)
        return Samples(chosen, labels, self.classes, self.scale, dtype, *how)

    @cached_property
    def single(self) -> Samples:
        """Return the same in single precision."""
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


# ---- the regression

MOST_COLUMNS = 4096  # of which the products are computed
TINY = 1e-6  # of a curvature
# Numbers of features, below which single precision saves no time.
LARGE = 2**20
# Of the gradient in single precision, for columns of deviation 1.
ROUNDING_IN_SINGLE = 1e-6
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


class Fit(NamedTuple):
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
    rounding = ROUNDING_IN_SINGLE * samples.single.magnitude
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


def binary_losses(samples: Samples, classes: Tensor, counts: Tensor, penalty: Tensor) -> Evaluate:
    """Return the objectives of a regression for each of these classes. labels: indicators.

    counts: of the samples whose indicator is known.
    """

    def evaluate(points: Tensor, which: Tensor) -> tuple[Tensor, Tensor]:
        weight, strength = points[:, :-1], penalty[which]
        value, gradient = torch.zeros_like(strength), torch.zeros_like(points)
        for features, rows in samples.pieces(rows_at_once(len(points), samples.width)):
            rows = rows[:, classes[which]]
            shown, known = (rows > 0).double(), (rows >= 0).double() / counts[which]
            logits = features @ weight.T + points[:, -1]
            value += ((softplus(logits) - shown * logits) * known).sum(dim=0)
            error = (logits.sigmoid() - shown) * known
            gradient[:, :-1] += error.T @ features
            gradient[:, -1] += error.sum(dim=0)
        value, gradient = samples.summed(value), samples.summed(gradient)
        value += strength / 2 * weight.square().sum(dim=1)
        gradient[:, :-1] += strength.unsqueeze(1) * weight
        return value, gradient

    return evaluate


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


# ---- L-BFGS


class Minimum(NamedTuple):
    points: Tensor
    converged: Tensor
    iterations: int


@torch.no_grad()
def minimise(
    evaluate: Evaluate,
    start: Tensor,
    tolerance: float,
    max_iterations: int,
    precondition: Precondition | None = None,
) -> Minimum:
    """Minimise smooth convex functions of one size by L-BFGS, each with its own steps.

    All share each evaluation, which is one product of matrices. One has converged, and leaves, when
    no component of its gradient is above the tolerance.
    """
    points, active = start.clone(), torch.arange(len(start), device=start.device)
    x = start.clone()
    value, gradient = evaluate(x, active)
    memory = _Memory(precondition or (lambda gradient, _: gradient))
    for iteration in range(max_iterations + 1):
        done = gradient.abs().amax(dim=1) <= tolerance
        points[active] = x
        if done.any() or iteration == max_iterations:
            left = ~done
            active, x, value, gradient = active[left], x[left], value[left], gradient[left]
            memory.keep(left)
        if not len(active) or iteration == max_iterations:
            break
        direction = -memory.times(gradient, active)
        step = x.new_ones(len(x))
        if precondition is None and not memory.pairs:
            step /= gradient.abs().sum(dim=1).clamp(min=1.0)
        new_x, new_value, new_gradient = _line_search(
            evaluate, active, x, value, gradient, direction, step
        )
        memory.add(new_x - x, new_gradient - gradient)
        stuck = (new_x == x).all(dim=1)  # the limit of the number format
        x, value, gradient = new_x, new_value, new_gradient
        gradient[stuck] = 0.0
    converged = torch.ones(len(start), dtype=torch.bool, device=start.device)
    converged[active] = False
    return Minimum(points, converged, iteration)


class _Memory:
    """The last steps and changes of the gradient, of each problem."""

    def __init__(self, first: Precondition) -> None:
        """first: the product with the inverse Hessian's estimate before any step."""
        self.pairs: list[tuple[Tensor, Tensor, Tensor]] = []
        self._first = first

    def add(self, step: Tensor, change: Tensor) -> None:
        product = (step * change).sum(dim=1)
        # A pair without curvature has no weight.
        weight = torch.where(product > 0, 1 / product.clamp(min=1e-300), 0.0)
        self.pairs = [*self.pairs[-HISTORY + 1 :], (step, change, weight)]

    def keep(self, problems: Tensor) -> None:
        for place, pair in enumerate(self.pairs):  # one by one: not all of them twice
            step, change, weight = (each[problems] for each in pair)
            self.pairs[place] = step, change, weight

    def times(self, gradient: Tensor, which: Tensor) -> Tensor:
        """Multiply the gradient by the inverse Hessian's estimate: the two loops."""
        if not self.pairs:
            return self._first(gradient, which)
        result, factors = gradient.clone(), []
        for step, change, weight in reversed(self.pairs):
            factor = weight * (step * result).sum(dim=1)
            result -= factor.unsqueeze(1) * change
            factors.append(factor)
        step, change, weight = self.pairs[-1]
        norm = (change * self._first(change, which)).sum(dim=1)
        scale = torch.where(weight > 0, 1 / (weight * norm).clamp(min=1e-300), 1.0)
        result = self._first(result, which) * scale.unsqueeze(1)
        for (step, change, weight), factor in zip(self.pairs, reversed(factors)):
            more = factor - weight * (change * result).sum(dim=1)
            result += more.unsqueeze(1) * step
        return result


def _line_search(
    evaluate: Evaluate, active: Tensor, x: Tensor, value: Tensor, gradient: Tensor,
    direction: Tensor, step: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return points, values and gradients after a step of each problem.

    The step satisfies the weak Wolfe conditions, found by bisection (Lewis and Overton, Nonsmooth
    Optimization via Quasi-Newton Methods, 2013), which convex functions always have.
    """
    slope = (gradient * direction).sum(dim=1)
    low, high = torch.zeros_like(step), torch.full_like(step, torch.inf)
    found = x.clone(), value.clone(), gradient.clone()
    search = torch.arange(len(x), device=x.device)
    for _ in range(TRIES):
        tried = x[search] + step[search].unsqueeze(1) * direction[search]
        new = tried, *evaluate(tried, active[search])
        rounding = ROUNDING_OF_VALUE * value[search].abs()
        allowed = DECREASE * step[search] * slope[search] + rounding
        too_long = ~(new[1] <= value[search] + allowed)
        ahead = (new[2] * direction[search]).sum(dim=1)
        too_short = ~too_long & (ahead < CURVATURE * slope[search])
        better = ~too_long  # kept, also if a longer step is tried
        for kept, each in zip(found, new):
            kept[search[better]] = each[better]
        high[search[too_long]] = step[search[too_long]]
        low[search[too_short]] = step[search[too_short]]
        search = search[too_long | too_short]
        if not len(search):
            break
        middle = (low[search] + high[search]) / 2
        step[search] = torch.where(high[search].isinf(), 2 * low[search], middle)
    return found
