"""Gaussian noise, and channels that are left out: for images with any number of channels.

What is drawn for each value or channel comes from a separate stream, whose seed is drawn from
torch's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from PIL import Image

from sslengine.data.augment.image import (
    NO_LIMITS,
    Limits,
    Pixels,
    Rgb,
    add_channels,
    interleaved,
    make_floats,
    shape_like,
)
from sslengine.data.augment.transform import (
    Transform,
    below,
    probability,
    round_p,
    uniform,
)
from sslengine.registry import register_transform

SEEDS = 2**31


def add_noise(image: Any, std: float, seed: int, limits: Limits = NO_LIMITS) -> Any:
    """Add another number to each value. std: 1 is the whole range of values."""
    pixels = _read_pixels(image)
    low, high = limits = limits.find(pixels)
    if math.isinf(low):
        low, high = float(pixels.min()), float(pixels.max())
    drawn = np.random.default_rng(seed).standard_normal(pixels.shape, np.float32)
    made = limits.round(make_floats(pixels) + std * (high - low) * drawn, pixels)
    return _give_back(made, image)


def drop_channels(image: Any, p: float, fill: str, seed: int, limits: Limits = NO_LIMITS) -> Any:
    """Put zero, or a channel's mean, into each channel with probability p, but never into all."""
    pixels = _read_pixels(image)
    gone = draw_channels(pixels.shape[2], p, seed)
    if not gone.any():
        return image
    made = pixels.copy()
    made[..., gone] = 0
    if fill == "mean":
        means = pixels[..., gone].mean((0, 1), dtype=np.float64)
        made[..., gone] = limits.find(pixels).round(means, pixels)
    return _give_back(made, image)


def draw_channels(channels: int, p: float, seed: int) -> Pixels:
    """Return of each channel whether it goes. If all would, one of them, drawn too, stays."""
    drawn = np.random.default_rng(seed)
    gone = drawn.random(channels) < p
    stays = drawn.integers(channels)
    if gone.all():
        gone[stays] = False
    return gone


def _read_pixels(image: Any) -> Pixels:
    """Return height x width x channels, not to be written to."""
    return add_channels(interleaved(image) if type(image) is Rgb else np.asarray(image))


def _give_back(made: Pixels, image: Any) -> Any:
    if isinstance(image, Image.Image):
        return Image.frombytes(image.mode, image.size, made.tobytes())
    return made.view(Rgb) if type(image) is Rgb else shape_like(made, image)


@register_transform("GaussianNoise")
class GaussianNoise(Transform):
    """Add noise to images with any number of channels, with probability p."""

    takes_arrays = True

    def __init__(self, std: float | Sequence[float] = 0.05, p: float = 0.5) -> None:
        """
        std: a share of the range of values (255 for 8 bits), or the least and greatest of
            those that are drawn.
        p: probability that an image gets noise.
        """
        ends = [std, std] if isinstance(std, (int, float)) else std
        self.least, self.most = map(float, ends)
        self.p = probability(p)

    def __call__(self, image: Any) -> Any:
        if uniform() >= round_p(self.p):
            return image
        return add_noise(image, uniform(self.least, self.most), below(SEEDS), self.limits)


@register_transform("ChannelDrop")
class ChannelDrop(Transform):
    """Each channel of an image is left out with probability p, but never all of them."""

    takes_arrays = True

    def __init__(self, p: float = 0.1, fill: Literal["zero", "mean"] = "zero") -> None:
        """
        p: probability with which each channel is dropped.
        fill: what takes its values' place: zero, or mean, the mean of the channel.
        """
        self.p, self.fill = probability(p), fill

    def __call__(self, image: Any) -> Any:
        return drop_channels(image, self.p, self.fill, below(SEEDS), self.limits)
