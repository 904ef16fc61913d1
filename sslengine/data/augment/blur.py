"""Blur: Pillow's GaussianBlur, three extended box blurs along each axis.

A box reaches over `reach` pixels to either side, each with the weight `near`, and the pixel
beyond it on either side has the weight `far`: integers, with 24 bits after the point. Each of
the six passes rounds to a byte, and beyond the image lies its last pixel. So the result is
Pillow's to the bit.
"""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter

from sslengine.data.augment.compiling import Array, Number, inlined, kernel, subroutine
from sslengine.data.augment.image import (
    NO_LIMITS,
    Limits,
    Rgb,
    make_floats,
    make_pil,
    make_rgb,
    own,
)
from sslengine.data.augment.transform import Transform, probability
from sslengine.registry import register_transform

# A box blur of Pillow costs the same at any reach; ours becomes slower than it.
FAR = 12


def blur(image: Any, radius: float, limits: Limits = NO_LIMITS) -> Any:
    """Blur by a Gaussian of this radius, its standard deviation in pixels. Of other arrays than
    8-bit RGB: the same boxes in floats, and no rounding between them."""
    if isinstance(image, Image.Image):
        return image.filter(ImageFilter.GaussianBlur(radius))
    reach, near, far = find_box(radius)
    if type(image) is Rgb:
        if reach > FAR:
            return make_rgb(blur(make_pil(image), radius))
        image, planes = own(image)
        blur_planes(planes, reach, near, far)
        return image
    values = make_floats(image)
    for axis in (1, 0):
        for _ in range(PASSES):
            values = _blur_axis(values, axis, reach, near / ONE, far / ONE)
    return limits.find(image).round(values, image)


@register_transform("ImgPilGaussianBlur")
class ImgPilGaussianBlur(Transform):
    """PIL's Gaussian blur, of a random radius, with probability p."""

    takes_arrays = True

    def __init__(self, p: float = 0.5, radius_min: float = 0.1, radius_max: float = 2.0) -> None:
        """
        p: probability that an image is blurred.
        radius_min, radius_max: standard deviations of the blur, in pixels, between which it is
            drawn evenly.
        """
        self.p = probability(p)
        self.radius_min = radius_min
        self.radius_max = radius_max

    def __call__(self, image: Any) -> Any:
        if np.random.rand() > self.p:  # noqa: NPY002
            return image
        return blur(image, random.uniform(self.radius_min, self.radius_max), self.limits)


# ---- boxes

PASSES = 3
ONE = 1 << 24


def find_box(radius: float) -> tuple[int, int, int]:
    """Return reach and weights, near and far, of the boxes that come to a Gaussian.

    In float32 as in Pillow's C; the weights are whole numbers, less than 2 ** 24. After Gwosdek
    et al., "Theoretical Foundations of Gaussian Convolution by Extended Box Filtering" (2011).
    """
    one, two = np.float32(1), np.float32(2)
    variance = np.float32(radius) * np.float32(radius) / np.float32(PASSES)
    length = np.float32(math.sqrt(12.0 * float(variance) + 1.0))
    whole = np.floor((length - one) / two)
    part = (two * whole + one) * (whole * (whole + one) - np.float32(3) * variance)
    part /= np.float32(6) * (variance - (whole + one) * (whole + one))
    exact = whole + part
    reach, near = int(exact), int(np.floor(np.float32(ONE) / (exact * two + one)))
    return reach, near, (ONE - (2 * reach + 1) * near) // 2


def _blur_axis(
    values: NDArray[Any], axis: int, reach: int, near: float, far: float
) -> NDArray[Any]:
    size, beyond = values.shape[axis], reach + 1
    margins = [(beyond, beyond) if number == axis else (0, 0) for number in range(values.ndim)]
    wide = np.moveaxis(np.pad(values, margins, "edge"), axis, 0)
    ends = wide[:size] + wide[2 * beyond :]
    inside = sum(wide[shift : shift + size] for shift in range(1, 2 * beyond))
    return np.moveaxis(far * ends + near * inside, 0, axis)


# ---- compiled

ROUND, POINT = np.uint32(1 << 23), np.uint32(24)
STRETCH = 2048  # of pixels whose sums stay in the nearest cache


@inlined
def _byte(inside: Number, ends: Number, near: Number, far: Number) -> Number:
    weighed = np.uint32(np.uint32(inside) * near) + np.uint32(np.uint32(ends) * far)
    return np.uint8(np.uint32(weighed + ROUND) >> POINT)


@inlined
def _moved(pixels: Array, begin: Number, end: Number, by: Number) -> Array:
    return pixels[begin + by : end + by]  # indices that count from 0 let loops vectorise


@subroutine
def _pass(
    old: Array, new: Array, begin: int, end: int, step: int, reach: int, near: int, far: int
) -> None:
    """Pass once over flat images: along rows with a step of 1, along columns with a row's width."""
    here, out = _moved(old, begin, end, 0), _moved(new, begin, end, 0)
    before, after = _moved(old, begin, end, -step), _moved(old, begin, end, step)
    beyond = (reach + 1) * step
    left, right = _moved(old, begin, end, -beyond), _moved(old, begin, end, beyond)
    if reach == 0:
        for i in range(out.size):
            out[i] = _byte(here[i], np.uint32(left[i]) + np.uint32(right[i]), near, far)
    elif reach == 1:
        for i in range(out.size):
            inside = np.uint32(before[i]) + np.uint32(here[i]) + np.uint32(after[i])
            out[i] = _byte(inside, np.uint32(left[i]) + np.uint32(right[i]), near, far)
    else:
        sums = np.empty(STRETCH, np.uint32)
        for first in range(0, out.size, STRETCH):
            count = min(STRETCH, out.size - first)
            sums[:] = 0
            for tap in range(-reach, reach + 1):
                each = _moved(old, begin + first, begin + first + count, tap * step)
                for i in range(count):
                    sums[i] += np.uint32(each[i])
            for i in range(count):
                ends = np.uint32(left[first + i]) + np.uint32(right[first + i])
                out[first + i] = _byte(sums[i], ends, near, far)


@kernel("void(uint8[:, :, ::1], int64, uint32, uint32)")
def blur_planes(planes: Array, reach: int, near: int, far: int) -> None:
    """Blur in place. In a frame, so that a pass is a single loop over a plane."""
    _, height, width = planes.shape
    edge = reach + 1
    row = width + 2 * edge
    old = np.empty((height + 2 * edge, row), np.uint8)
    new = np.empty_like(old)
    begin, end = edge * row + edge, (edge + height) * row - edge
    for plane in planes:
        old[edge : edge + height, edge : edge + width] = plane
        for _ in range(PASSES):
            for y in range(edge, edge + height):
                old[y, :edge] = old[y, edge]
                old[y, edge + width :] = old[y, edge + width - 1]
            _pass(old.reshape(-1), new.reshape(-1), begin, end, 1, reach, near, far)
            old, new = new, old
        for _ in range(PASSES):
            for y in range(edge):
                old[y] = old[edge]
                old[edge + height + y] = old[edge + height - 1]
            _pass(old.reshape(-1), new.reshape(-1), begin, end, row, reach, near, far)
            old, new = new, old
        plane[:] = old[edge : edge + height, edge : edge + width]
