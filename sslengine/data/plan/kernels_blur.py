"""Pillow's GaussianBlur as a compiled loop: three extended box blurs along each axis.

A box reaches over `reach` pixels to either side, each with the weight `near`, and the pixel
beyond it on either side has the weight `far`: integers, with 24 bits after the point. Each of
the six passes rounds to a byte, and beyond the image lies its last pixel. So the result is
Pillow's to the bit.
"""

from __future__ import annotations

import numba
import numpy as np
from numba import int64, uint8, uint32, void

from sslengine.data.plan.compiling import Array, Number, inlined, kernel, subroutine

PASSES = 3
ROUND, POINT = np.uint32(1 << 23), np.uint32(24)
STRETCH = 2048  # of pixels whose sums stay in the nearest cache


def box_of(radius: float) -> tuple[int, int, int]:
    """Reach and weights of the boxes that come to a Gaussian; in float32 where Pillow's are.

    After Gwosdek et al., "Theoretical Foundations of Gaussian Convolution by Extended Box
    Filtering" (2011).
    """
    one, two, three, six = np.array([1, 2, 3, 6], np.float32)
    variance = np.float32(radius) * np.float32(radius) / three
    length = np.float32(np.sqrt(12.0 * float(variance) + 1.0))
    whole = np.float32(np.floor((float(length) - 1.0) / 2.0))
    share = (two * whole + one) * (whole * (whole + one) - three * variance)
    wide = whole + share / (six * (variance - (whole + one) * (whole + one)))
    reach, near = int(wide), int(np.float32(1 << 24) / (wide * two + one))
    return reach, near, ((1 << 24) - (2 * reach + 1) * near) // 2


@inlined
def _byte(inside: Number, ends: Number, near: Number, far: Number) -> Number:
    weighed = uint32(uint32(inside) * near) + uint32(uint32(ends) * far)
    return uint8(uint32(weighed + ROUND) >> POINT)


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
            out[i] = _byte(here[i], uint32(left[i]) + uint32(right[i]), near, far)
    elif reach == 1:
        for i in range(out.size):
            inside = uint32(before[i]) + uint32(here[i]) + uint32(after[i])
            out[i] = _byte(inside, uint32(left[i]) + uint32(right[i]), near, far)
    else:
        sums = np.empty(STRETCH, np.uint32)
        for first in range(0, out.size, STRETCH):
            count = min(STRETCH, out.size - first)
            sums[:] = 0
            for tap in range(-reach, reach + 1):
                each = _moved(old, begin + first, begin + first + count, tap * step)
                for i in range(count):
                    sums[i] += uint32(each[i])
            for i in range(count):
                ends = uint32(left[first + i]) + uint32(right[first + i])
                out[first + i] = _byte(sums[i], ends, near, far)


@kernel(void(numba.uint8[:, :, ::1], int64, uint32, uint32))
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
