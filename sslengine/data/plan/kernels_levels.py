"""Pillow's tables as compiled loops over the planes of an image, in place.

Each level of a channel becomes another, which depends on the levels that the channel has. Tables
are made in double and in integers, in Pillow's order: no byte differs.
"""

from __future__ import annotations

import numba
import numpy as np
from numba import float64, int64, uint8, void

from sslengine.data.plan.compiling import Array, kernel, subroutine

PLANES = numba.uint8[:, :, ::1]  # 3 x height x width
LEVELS = 256


@subroutine
def _look_up(values: Array, table: Array) -> None:
    for i in range(values.size):
        values[i] = table[values[i]]


@kernel(void(PLANES))
def autocontrast(planes: Array) -> None:
    table = np.empty(LEVELS, np.uint8)
    for channel in range(3):
        values = planes[channel].reshape(-1)
        least, most = uint8(255), uint8(0)
        for i in range(values.size):
            least, most = min(least, values[i]), max(most, values[i])
        low, high = float64(least), float64(most)
        if high > low:
            scale = 255.0 / (high - low)
            offset = -low * scale
            for level in range(LEVELS):
                table[level] = uint8(min(max(level * scale + offset, 0.0), 255.0))
            _look_up(values, table)


@kernel(void(PLANES))
def equalize(planes: Array) -> None:
    table = np.empty(LEVELS, np.uint8)
    for channel in range(3):
        values = planes[channel].reshape(-1)
        counts = np.zeros(LEVELS, np.int64)
        most = uint8(0)
        for i in range(values.size):
            counts[values[i]] += 1
            most = max(most, values[i])
        step = (values.size - counts[most]) // 255
        if step > 0:
            passed = int64(step // 2)
            for level in range(LEVELS):
                table[level] = uint8(min(passed // step, 255))
                passed += counts[level]
            _look_up(values, table)
