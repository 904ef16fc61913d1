"""Do metrics order checkpoints as labels do? Rank correlations with bootstrap intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]

RESAMPLES, LEAST = 2000, 3


class Interval(NamedTuple):
    value: float
    low: float
    high: float
    n: int  # checkpoints in which both are defined


def spearman(x: Values, y: Values) -> Values:
    """Of each row; NaN where one is constant."""
    # The sum is twice the rank, tied ones averaged, around its mean.
    return _cosine(*(_signs(each).sum(axis=-1) for each in (x, y)))


def kendall(x: Values, y: Values) -> Values:
    """tau-b of each row, which corrects for ties; NaN where one is constant."""
    return _cosine(*(_signs(each).reshape(*each.shape[:-1], -1) for each in (x, y)))


def agreement(
    correlation: Callable[[Values, Values], Values], x: Sequence[float], y: Sequence[float]
) -> Interval | None:
    """With the 95 % percentile interval over resampled checkpoints; None with fewer than LEAST."""
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
