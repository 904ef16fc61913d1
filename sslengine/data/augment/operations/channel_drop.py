"""Channels that are left out: zero, or their mean, in all pixels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sslengine.data.augment.arrays import Limits, Pixels
from sslengine.data.augment.operation import OfValues, Operation, Size
from sslengine.data.augment.operations.noise import SEEDS
from sslengine.data.augment.stream import below
from sslengine.data.augment.transform import Transform, probability
from sslengine.registry import register_transform

FILLS = ("zero", "mean")


@dataclass(frozen=True)
class DropChannels(OfValues):
    p: float
    fill: str
    seed: int

    def dropped(self, channels: int) -> NDArray[np.bool_]:
        """Of each channel: is it? If all were, one of them, drawn too, stays."""
        drawn = np.random.default_rng(self.seed)
        gone: NDArray[np.bool_] = drawn.random(channels) < self.p
        stays = drawn.integers(channels)
        if gone.all():
            gone[stays] = False
        return gone

    def on_array(self, pixels: Pixels, limits: Limits) -> Pixels:
        gone = self.dropped(pixels.shape[2])
        if not gone.any():
            return pixels
        made: Pixels = pixels.copy()
        made[..., gone] = 0
        if self.fill == "mean":
            means = pixels[..., gone].mean((0, 1), dtype=np.float64)
            made[..., gone] = limits.rounded(means, pixels)
        return made


@register_transform("ChannelDrop")
class ChannelDrop(Transform):
    """Each channel of an image is left out with probability p, but never all of them."""

    def __init__(self, p: float = 0.1, fill: str = "zero") -> None:
        """
        p: probability with which each channel is dropped.
        fill: what takes its values' place: zero, or mean, the mean of the channel.
        """
        self.p = probability(p)
        if fill not in FILLS:
            raise ValueError(f"fill: expected zero or mean, got {fill!r}.")
        self.fill = fill

    def draw(self, size: Size) -> list[Operation]:
        return [DropChannels(self.p, self.fill, below(SEEDS))]
