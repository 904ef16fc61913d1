"""Gaussian noise, of a standard deviation that is a share of the range of values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sslengine.data.augment.arrays import Limits, Pixels, as_floats
from sslengine.data.augment.operation import OfValues, Operation, Size
from sslengine.data.augment.stream import as_compared, below, uniform
from sslengine.data.augment.transform import Transform, probability
from sslengine.registry import register_transform

SEEDS = 2**31


@dataclass(frozen=True)
class Noise(OfValues):
    """To each value another number, drawn from a stream of the operation's own."""

    std: float  # 1: the whole range
    seed: int

    def on_array(self, pixels: Pixels, limits: Limits) -> Pixels:
        low, high = limits
        if math.isinf(low):
            low, high = float(pixels.min()), float(pixels.max())
        drawn = np.random.default_rng(self.seed).standard_normal(pixels.shape, np.float32)
        return limits.rounded(as_floats(pixels) + self.std * (high - low) * drawn, pixels)


@register_transform("GaussianNoise")
class GaussianNoise(Transform):
    """Add noise to images with any number of channels, with probability p."""

    def __init__(self, std: float | Sequence[float] = 0.05, p: float = 0.5) -> None:
        """
        std: a share of the range of values (255 for 8 bits), or the least and greatest of
            those that are drawn.
        p: probability that an image gets noise.
        """
        match std:
            case int() | float():
                self.least = self.most = float(std)
            case [int() | float() as low, int() | float() as high]:
                self.least, self.most = float(low), float(high)
            case _:
                raise ValueError(f"std: expected a number, or two; got {std!r}.")
        if not 0 <= self.least <= self.most:
            raise ValueError(f"std: expected shares from 0, in order; got {std!r}.")
        self.p = probability(p)

    def draw(self, size: Size) -> list[Operation]:
        if uniform() >= as_compared(self.p):
            return []
        return [Noise(uniform(self.least, self.most), below(SEEDS))]
