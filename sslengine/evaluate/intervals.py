"""95 % intervals of a score over its test images: how far another draw of them might be."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from sslengine.evaluate.pairs import NORMAL

RESAMPLES = 200
# Scores that are sorted for an interval.
SORTED = 2**28


def of_accuracy(percent: float, images: int) -> list[float]:
    """Wilson's interval: about that of a bootstrap, and not empty where all images are right."""
    share, square = percent / 100, NORMAL**2
    middle = share + square / (2 * images)
    half = NORMAL * math.sqrt(share * (1 - share) / images + square / (4 * images**2))
    low, high = (100 * (middle + sign * half) / (1 + square / images) for sign in (-1, 1))
    return [max(0.0, low), min(100.0, high)]


def of_resamples(measure: Callable[[Tensor], float], wanted: Tensor) -> list[float]:
    """The percentile bootstrap. measure: of the images with these numbers; wanted: of all images.

    Empty if the set is so large that it would take minutes.
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
