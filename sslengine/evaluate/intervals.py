"""95 % intervals of a score: how far another draw of test images, or of seeds, might be."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

import torch
from scipy import special  # type: ignore[import-untyped]
from torch import Tensor

from sslengine.evaluate.pairs import NORMAL

RESAMPLES = 200
# Scores that are sorted for an interval.
SORTED = 2**28


@dataclass(frozen=True)
class Spread:
    """The mean of several draws."""

    mean: float
    # Half the width of the 95 % confidence interval of the mean (Student's t); NaN of one value.
    half: float

    @classmethod
    def over(cls, values: Sequence[float]) -> Spread:
        if len(values) < 2:
            return cls(fmean(values), math.nan)
        quantile = float(special.stdtrit(len(values) - 1, 0.975))
        return cls(fmean(values), quantile * stdev(values) / math.sqrt(len(values)))


def wilson(percent: float, images: int) -> list[float]:
    """Return an accuracy's interval: about a bootstrap's, not empty where all images are right."""
    share, square = percent / 100, NORMAL**2
    middle = share + square / (2 * images)
    half = NORMAL * math.sqrt(share * (1 - share) / images + square / (4 * images**2))
    low, high = (100 * (middle + sign * half) / (1 + square / images) for sign in (-1, 1))
    return [max(0.0, low), min(100.0, high)]


def bootstrap(measure: Callable[[Tensor], float], wanted: Tensor) -> list[float]:
    """Return the percentile bootstrap; empty for a set so large that it would take minutes.

    measure: of the images with these numbers. wanted: the labels of all images.
    """
    if wanted.numel() * RESAMPLES > SORTED:
        return []
    draw = torch.Generator().manual_seed(0)
    count = len(wanted)
    found = [measure(torch.randint(count, (count,), generator=draw)) for _ in range(RESAMPLES)]
    values = torch.tensor([each for each in found if math.isfinite(each)], dtype=torch.float64)
    if not len(values):
        return []
    return torch.quantile(values, torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
