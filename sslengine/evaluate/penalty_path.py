"""Regressions of many penalties, each started where the classifiers of near penalties lead.

That is on the line through the nearest two, over the logarithm of the penalty. Every third penalty
first, two at a time, from strong to weak; then all others at once, which start between known ones.
So 45 penalties need about a third of the evaluations that they need from zero, and evaluations of
many penalties at once take less time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import log

import torch
from torch import Tensor

from sslengine.evaluate.logistic import Fit, classifiers_of, no_classifier, solve
from sslengine.evaluate.minimise import HISTORY
from sslengine.evaluate.samples import Samples

EVERY, PAIR = 3, 2
# From a classifier, in distances of the two: unevenly spaced penalties may lead far away.
FURTHEST = 2.0
# Bytes of the minimiser: all that it knows of a penalty are so many classifiers.
STATE, CLASSIFIERS = 2**29, 2 * HISTORY + 16


def fit_path(
    samples: Samples,
    penalties: Sequence[float],
    tolerance: float = 1e-6,
    max_iterations: int = 1000,
) -> Fit:
    """As `fit`; max_iterations of each. Of samples in single precision the classifiers are too."""
    known: dict[float, Tensor] = {}
    converged: dict[float, bool] = {}
    iterations = 0
    for some in _rounds(sorted({*penalties}, reverse=True), at_once(samples)):
        starts = torch.stack([_start(samples, known, each) for each in some])
        found = solve(samples, some, starts, tolerance, max_iterations)
        known |= zip(some, found.points.to(samples.dtype))
        converged |= zip(some, found.converged.tolist())
        iterations += found.iterations
    classifiers = classifiers_of(known[each] for each in penalties)
    return Fit(classifiers, [converged[each] for each in penalties], iterations)


def at_once(samples: Samples) -> int:
    """Penalties, so that the minimiser stays within STATE."""
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
