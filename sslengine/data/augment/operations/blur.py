"""Blur: Pillow's GaussianBlur, three extended box blurs along each axis.

A box reaches over `reach` pixels to either side, each with the weight `near`, and the pixel
beyond it on either side has the weight `far`: integers, with 24 bits after the point. Each of
the six passes rounds to a byte, and beyond the image lies its last pixel. So the result is
Pillow's to the bit.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter

from sslengine.data.augment.arrays import Limits, Pixels, as_floats
from sslengine.data.augment.compiling import Array, Number, inlined, kernel, subroutine
from sslengine.data.augment.operation import Operation, Planes, Size
from sslengine.data.augment.transform import Transform, probability
from sslengine.registry import register_transform

# A box blur of Pillow costs the same at any reach; ours becomes slower than it.
FAR = 12


@dataclass(frozen=True)
class Blur(Operation):
    radius: float

    def on_pil(self, image: Image.Image) -> Image.Image:
        return image.filter(ImageFilter.GaussianBlur(self.radius))

    def on_array(self, pixels: Pixels, limits: Limits) -> Pixels:
        """The same boxes in floats, and no rounding between them."""
        reach, *weights = box_of(self.radius)
        near, far = (weight / ONE for weight in weights)
        values = as_floats(pixels)
        for axis in (1, 0):
            for _ in range(PASSES):
                values = _box_of_floats(values, axis, reach, near, far)
        return limits.rounded(values, pixels)

    def on_planes(self, planes: Planes) -> Planes:
        reach, near, far = box_of(self.radius)
        if reach > FAR:
            return super().on_planes(planes)
        blur(planes, reach, near, far)
        return planes


@register_transform("ImgPilGaussianBlur")
class ImgPilGaussianBlur(Transform):
    """PIL's Gaussian blur, of a random radius, with probability p."""

    def __init__(self, p: float = 0.5, radius_min: float = 0.1, radius_max: float = 2.0) -> None:
        """
        p: probability that an image is blurred.
        radius_min, radius_max: standard deviations of the blur, in pixels, between which it is
            drawn evenly.
        """
        self.p = probability(p)
        self.radius_min = radius_min
        self.radius_max = radius_max

    def draw(self, size: Size) -> list[Operation]:
        if np.random.rand() > self.p:  # noqa: NPY002
            return []
        return [Blur(random.uniform(self.radius_min, self.radius_max))]


PASSES = 3
ONE = 1 << 24


def boxes(radii: NDArray[np.float32]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """For radii of Gaussians: how far the box reaches in whole pixels, and the weight of each.

    In float32 as in Pillow's C; the weights are whole numbers, less than 2 ** 24. After Gwosdek
    et al., "Theoretical Foundations of Gaussian Convolution by Extended Box Filtering" (2011).
    """
    single: Any = np.float32
    variance = radii.astype(single) * radii.astype(single) / single(PASSES)
    length = np.sqrt(12.0 * variance.astype(np.float64) + 1.0).astype(single)
    whole = np.floor((length - single(1)) / single(2))
    part = (2 * whole + 1) * (whole * (whole + 1) - single(3) * variance)
    part /= single(6) * (variance - (whole + 1) * (whole + 1))
    reach = whole + part
    weight = np.floor(single(ONE) / (reach * single(2) + single(1)))
    return reach.astype(np.int64), weight.astype(single)


def _box_of_floats(
    values: NDArray[Any], axis: int, reach: int, near: float, far: float
) -> NDArray[Any]:
    size, beyond = values.shape[axis], reach + 1
    margins = [(beyond, beyond) if number == axis else (0, 0) for number in range(3)]
    wide = np.moveaxis(np.pad(values, margins, "edge"), axis, 0)
    ends = wide[:size] + wide[2 * beyond :]
    inside = sum(wide[shift : shift + size] for shift in range(1, 2 * beyond))
    return np.moveaxis(far * ends + near * inside, 0, axis)


# ---- compiled

ROUND, POINT = np.uint32(1 << 23), np.uint32(24)
STRETCH = 2048  # of pixels whose sums stay in the nearest cache


def box_of(radius: float) -> tuple[int, int, int]:
    """Reach and weights of the boxes that come to a Gaussian."""
    reach, weight = (int(each[0]) for each in boxes(np.array([radius], np.float32)))
    return reach, weight, (ONE - (2 * reach + 1) * weight) // 2


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
    """One pass over flat images: along rows with a step of 1, along columns with a row's width."""
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
def blur(planes: Array, reach: int, near: int, far: int) -> None:
    """3 x height x width, in place. In a frame, so that a pass is a single loop over a plane."""
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
