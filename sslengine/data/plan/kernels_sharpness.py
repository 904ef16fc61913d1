"""Pillow's sharpness as a compiled loop, to the bit.

Smooth is a sum over 3 x 3 pixels, the one in the middle five times, by 13. That never comes to
a half, so that a sum in float32 is rounded as Pillow rounds it.
"""

from __future__ import annotations

import numba
import numpy as np
from numba import float32, uint8

from sslengine.data.plan.compiling import Array, kernel

PLANES = numba.uint8[:, :, ::1]  # 3 x height x width
ZERO, HALF, FOUR, WHITE = (np.float32(number) for number in (0, 0.5, 4, 255))
PER_WEIGHT = np.float32(1 / 13)


@kernel(PLANES(PLANES, float32))
def sharpened(planes: Array, factor: float) -> Array:
    """The outermost pixels have not all neighbours, and stay."""
    _, height, width = planes.shape
    out = planes.copy()
    sums = np.empty(width, np.float32)
    for channel in range(3):
        old = planes[channel]
        for y in range(1, height - 1):
            above, row, below, into = old[y - 1], old[y], old[y + 1], out[channel, y, 1:]
            for x in range(width):
                sums[x] = float32(above[x]) + float32(row[x]) + float32(below[x])
            left, middle, right, inner = sums, sums[1:], sums[2:], row[1:]
            for x in range(width - 2):
                value = float32(inner[x])
                total = left[x] + middle[x] + right[x] + FOUR * value
                smooth = np.floor(total * PER_WEIGHT + HALF)
                sharp = smooth + factor * (value - smooth)
                into[x] = uint8(min(max(sharp, ZERO), WHITE))
    return out
