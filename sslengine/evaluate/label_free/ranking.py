"""Do metrics order checkpoints as labels do? Rank correlations with bootstrap intervals.

One table, metric by checkpoint: values, each metric's order, and its agreement with labels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sslengine.errors import DataError
from sslengine.evaluate.knn import knn_curve
from sslengine.evaluate.label_free.geometry import LEAST_CHECKPOINTS, clid_over
from sslengine.evaluate.label_free.metric import Best, Measured, goodness, metric
from sslengine.evaluate.linear import linear_probe

Values = NDArray[np.float64]

RESAMPLES, LEAST = 2000, 3


class Interval(NamedTuple):
    value: float
    low: float
    high: float
    n: int  # checkpoints in which both are defined


def spearman(x: Values, y: Values) -> Values:
    """Correlate each row; NaN where one is constant."""
    # The sum is twice the rank, tied ones averaged, around its mean.
    return _cosine(*(_signs(each).sum(axis=-1) for each in (x, y)))


def kendall(x: Values, y: Values) -> Values:
    """tau-b of each row, which corrects for ties; NaN where one is constant."""
    return _cosine(*(_signs(each).reshape(*each.shape[:-1], -1) for each in (x, y)))


def agreement(
    correlation: Callable[[Values, Values], Values], x: Sequence[float], y: Sequence[float]
) -> Interval | None:
    """Correlate, with the 95 % interval over resampled checkpoints; None with fewer than LEAST."""
    both = np.array([x, y], float)
    both = both[:, np.isfinite(both).all(axis=0)]
    count = both.shape[1]
    if count < LEAST:
        return None
    value = float(correlation(both[:1], both[1:])[0])
    drawn = np.random.default_rng(0).integers(0, count, (RESAMPLES, count))
    found = correlation(both[0][drawn], both[1][drawn])
    found = found[np.isfinite(found)]  # a resample of equal values has none
    if math.isnan(value) or not len(found):
        return None
    low, high = np.percentile(found, [2.5, 97.5])
    return Interval(value, float(low), float(high), count)


def _signs(rows: Values) -> Values:
    """The order of each pair: -1, 0, 1."""
    signs: Values = np.sign(rows[..., :, None] - rows[..., None, :])
    return signs


def _cosine(x: Values, y: Values) -> Values:
    scale = np.sqrt((x * x).sum(axis=-1) * (y * y).sum(axis=-1))
    with np.errstate(invalid="ignore", divide="ignore"):
        found: Values = np.where(scale > 0, (x * y).sum(axis=-1) / scale, np.nan)
    return found


OVER = "clid_over"  # which needs all checkpoints
NEIGHBOURS = 20
SCORE, LINEAR = f"knn@{NEIGHBOURS}", "linear"


@dataclass(frozen=True)
class RankedRow:
    name: str
    best: Best | None
    values: list[Measured]  # of each checkpoint
    # Of the goodness, in the same direction for all metrics, with the labels' score.
    spearman: Interval | None = None
    kendall: Interval | None = None
    # The same with the accuracy of a linear probe.
    linear: Interval | None = None

    @property
    def order(self) -> list[int]:
        """The checkpoints, the best first; those without a value are left out."""
        if self.best is None:
            return []
        defined = [number for number, each in enumerate(self.values) if each.defined]
        return sorted(defined, key=lambda each: -goodness(self.best, self.values[each].value))


def ranked(
    found: Sequence[Mapping[str, Measured]],
    scores: Sequence[Measured],
    probes: Sequence[Measured] = (),
) -> list[RankedRow]:
    """found: of each checkpoint, by metric. scores, probes: by labels; their rows come first."""
    rows = [RankedRow(name, metric(name).best, [each[name] for each in found]) for name in found[0]]
    if "clid" in found[0]:
        at = [row.name for row in rows].index("clid") + 1
        rows.insert(at, RankedRow(OVER, "high", _over([each["clid"] for each in found])))
    score, probe = (
        RankedRow(SCORE, "high", list(scores)),
        RankedRow(LINEAR, "high", list(probes)),
    )
    rows = [*([probe] if probes else []), *rows]
    return [score, *(_compared(row, score, probe) for row in rows)]


def score_of(features: Tensor, labels: Tensor | None) -> Measured:
    """kNN, in percent: a random half of the images finds its neighbours in the other half."""
    return _halve(features, labels, _neighbours)


def probe_of(features: Tensor, labels: Tensor | None) -> Measured:
    """A linear probe, in percent, fitted on one half of the images and scored on the other."""
    return _halve(features, labels, lambda *sets: linear_probe(*sets).test_accuracy)


def _neighbours(train: Tensor, labels: Tensor, test: Tensor, wanted: Tensor) -> float:
    k = min(NEIGHBOURS, len(train))
    return knn_curve(train, labels, test, wanted, [k])[k][0]


def _halve(features: Tensor, labels: Tensor | None, accuracy: Callable[..., float]) -> Measured:
    why = _why_no_score(labels)
    if labels is None or why:
        return Measured(math.nan, 0, why)
    known = labels >= 0
    features, labels = features[known], labels[known]
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    train, test = order.chunk(2)
    try:
        value = accuracy(features[train], labels[train], features[test], labels[test])
    except DataError as error:
        return Measured(math.nan, len(test), str(error))
    return Measured(value, len(test))


def _why_no_score(labels: Tensor | None) -> str:
    if labels is None:
        return "not computed: the images have no labels"
    if labels.ndim > 1:
        return "not computed: images have several classes"
    if len(labels[labels >= 0].unique()) < 2:
        return "not computed: there are labels of fewer than two classes"
    return ""


def _over(found: Sequence[Measured]) -> list[Measured]:
    defined = [each for each in found if each.defined]
    if len(defined) < LEAST_CHECKPOINTS:
        why = f"not computed: it compares {LEAST_CHECKPOINTS} checkpoints or more"
        return [Measured(math.nan, 0, why)] * len(found)
    parts = [(each.details["learnability"], each.details["dimension"]) for each in defined]
    values = iter(clid_over(parts))
    return [replace(each, value=next(values)) if each.defined else each for each in found]


def _compared(row: RankedRow, score: RankedRow, probe: RankedRow) -> RankedRow:
    good = [goodness(row.best, each.value) for each in row.values]
    wanted = [each.value for each in score.values]
    rho, tau = (agreement(correlation, good, wanted) for correlation in (spearman, kendall))
    other = probe.values and row is not probe
    linear = agreement(spearman, good, [each.value for each in probe.values]) if other else None
    return RankedRow(row.name, row.best, row.values, rho, tau, linear)
