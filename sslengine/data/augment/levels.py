"""What maps each channel's levels: solarize, posterize, invert, auto-contrast; sharpness.

Each is one function. Of 8-bit RGB its kernel comes to Pillow's bytes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from PIL import Image, ImageEnhance, ImageOps

from sslengine.data.augment.compiling import Array, kernel
from sslengine.data.augment.image import (
    NO_LIMITS,
    Limits,
    Rgb,
    make_floats,
    own,
    refuse_array,
    view_planes,
)
from sslengine.data.augment.transform import InTurn, expect
from sslengine.registry import register_transform

ZERO, WHITE = np.float32(0), np.float32(255)
LEVELS = 256  # of a byte


# ---- operations


def solarize(image: Any, threshold: int, limits: Limits = NO_LIMITS) -> Any:
    """Invert the values from a threshold on, which is one of 8 bits."""
    if type(image) is Rgb:
        image, planes = own(image)
        solarize_planes(planes, threshold)
        return image
    if isinstance(image, Image.Image):
        return ImageOps.solarize(image, threshold)
    low, high = limits.find(image).declared("Solarize")
    values, level = make_floats(image), low + threshold / 255 * (high - low)
    inverted = np.where(values < level, values, low + high - values)
    return limits.find(image).keep(inverted, image)


def posterize(image: Any, bits: int) -> Any:
    """Keep the upper bits of each value, from 1 to 8 of them."""
    if type(image) is Rgb:
        image, planes = own(image)
        np.bitwise_and(planes, np.uint8(256 - (1 << 8 - bits)), out=planes)
        return image
    if isinstance(image, Image.Image):
        return ImageOps.posterize(image, bits)
    return refuse_array("Posterize")


def invert(image: Any, limits: Limits = NO_LIMITS) -> Any:
    """White becomes black."""
    if type(image) is Rgb:
        image, planes = own(image)
        np.invert(planes, out=planes)
        return image
    if isinstance(image, Image.Image):
        return ImageOps.invert(image)
    low, high = limits.find(image).declared("Invert")
    return limits.find(image).keep(low + high - make_floats(image), image)


def stretch_contrast(image: Any) -> Any:
    """Stretch each channel over all its values. Tables are made in double, in Pillow's order."""
    if type(image) is Rgb:
        image, planes = own(image)
        stretch_planes(planes)
        return image
    if isinstance(image, Image.Image):
        return ImageOps.autocontrast(image)
    return refuse_array("AutoContrast")


def sharpen(image: Any, factor: float) -> Any:
    """Smooth with the neighbours at 0, change nothing at 1, sharpen above 1.

    Smooth is a sum over 3 x 3 pixels, the one in the middle five times, by 13, rounded: it never
    comes to a half. The outermost pixels have not all neighbours, and stay.
    """
    if type(image) is Rgb:
        planes = own(image)[1]
        made = np.empty(planes.shape, np.uint8)
        sharpen_planes(planes, factor, made)
        return view_planes(made)
    if isinstance(image, Image.Image):
        return ImageEnhance.Sharpness(image).enhance(factor)
    return refuse_array("Sharpness")


# ---- transforms


@register_transform("ImgPilRandomSolarize")
class ImgPilRandomSolarize(InTurn):
    """Invert the pixels from a threshold on, with probability p."""

    def __init__(self, p: float = 0.66, threshold: int | None = None) -> None:
        """
        p: probability that an image is solarized.
        threshold: by default drawn for each image, from 0 to 256, as VISSL does. BYOL, Barlow
            Twins, VICReg and DINO have 128.
        """
        expect(threshold is None or 0 <= threshold <= 256, "threshold", "0 to 256", threshold)
        super().__init__([], p)
        self.threshold = threshold

    def change(self, image: Any) -> Any:
        threshold = self.threshold
        if threshold is None:
            threshold = int(np.random.randint(0, 257))  # noqa: NPY002
        return solarize(image, threshold, self.limits)


@register_transform("ImgPilRandomPhotometric")
class ImgPilRandomPhotometric(InTurn):
    """PIRL's, all or none: posterize, sharpen or soften, solarize, stretch the contrast."""

    def __init__(self, p: float = 0.66) -> None:
        """p: probability of all of them together."""
        super().__init__([], p)

    def change(self, image: Any) -> Any:
        image = posterize(image, int(np.random.randint(4, 9)))  # noqa: NPY002
        image = sharpen(image, np.random.uniform(0.1, 1.9))  # noqa: NPY002
        image = solarize(image, int(np.random.randint(0, 257)), self.limits)  # noqa: NPY002
        return stretch_contrast(image)


# ---- kernels


@kernel("void(uint8[:, :, ::1], float32)")
def solarize_planes(planes: Array, threshold: float) -> None:
    values = planes.reshape(-1)
    for i in range(values.size):
        value = np.float32(values[i])
        values[i] = np.uint8(value if value < threshold else WHITE - value)


@kernel("void(uint8[:, :, ::1])")
def stretch_planes(planes: Array) -> None:
    table = np.empty(LEVELS, np.uint8)
    for channel in range(3):
        values = planes[channel].reshape(-1)
        least, most = np.uint8(255), np.uint8(0)
        for i in range(values.size):
            least, most = min(least, values[i]), max(most, values[i])
        low, high = np.float64(least), np.float64(most)
        if high > low:
            scale = 255.0 / (high - low)
            offset = -low * scale
            for level in range(LEVELS):
                table[level] = np.uint8(min(max(level * scale + offset, 0.0), 255.0))
            for i in range(values.size):
                values[i] = table[values[i]]


HALF, FOUR, PER_WEIGHT = np.float32(0.5), np.float32(4), np.float32(1 / 13)


@kernel("void(uint8[:, :, ::1], float32, uint8[:, :, ::1])")
def sharpen_planes(planes: Array, factor: float, out: Array) -> None:
    _, height, width = planes.shape
    out[:] = planes
    sums = np.empty(width, np.float32)
    for channel in range(3):
        old = planes[channel]
        for y in range(1, height - 1):
            above, row, below, into = old[y - 1], old[y], old[y + 1], out[channel, y, 1:]
            for x in range(width):
                sums[x] = np.float32(above[x]) + np.float32(row[x]) + np.float32(below[x])
            left, middle, right, inner = sums, sums[1:], sums[2:], row[1:]
            for x in range(width - 2):
                value = np.float32(inner[x])
                total = left[x] + middle[x] + right[x] + FOUR * value
                smooth = np.floor(total * PER_WEIGHT + HALF)
                sharp = smooth + factor * (value - smooth)
                into[x] = np.uint8(min(max(sharp, ZERO), WHITE))
