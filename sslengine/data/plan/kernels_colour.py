"""Pillow's colour operations as compiled loops over the planes of an image, in place.

Each gives what Pillow gives, to the bit. Where Pillow computes in double, float32 comes to the
same bytes: the tests compare all 2^24 colours. Integers are float32 too, because numba makes
64 bits of each, and loops over these are slow.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba import float32, int64, uint8, void

from sslengine.data.plan.compiling import Array, Number, inlined, kernel

PLANES = numba.uint8[:, :, ::1]  # 3 x height x width

ZERO, HALF, ONE, THREE, FIVE, SIX = (np.float32(number) for number in (0, 0.5, 1, 3, 5, 6))
WHITE, TURN = np.float32(255), np.float32(256)  # a turn of the hue takes so many steps of a byte
CIRCLE, TWO_THIRDS = np.float32(6 * 255), np.float32(4 * 255)
PER_WHITE_SQUARED = np.float32(1 / 255**2)
# ITU-R 601 with 16 bits after the point. Sums stay below 2^24: float32 holds them exactly.
RED, GREEN, BLUE, ROUND = (np.float32(weight) for weight in (19595, 38470, 7471, 1 << 15))
FROM_16_BITS = np.float32(1 / (1 << 16))


@inlined
def _luminance(red: Number, green: Number, blue: Number) -> Number:
    return np.floor((RED * red + GREEN * green + BLUE * blue + ROUND) * FROM_16_BITS)


@inlined
def _blend(low: Number, value: Number, factor: Number) -> Number:
    return uint8(min(max(low + factor * (value - low), ZERO), WHITE))


@kernel(void(PLANES, float32, float32))
def blend_with(planes: Array, low: float, factor: float) -> None:
    """Away from the level `low`, or towards it. Brightness, if it is 0; contrast, if the mean."""
    values = planes.reshape(-1)
    for i in range(values.size):
        values[i] = _blend(low, float32(values[i]), factor)


@kernel(int64(PLANES))
def mean_luminance(planes: Array) -> int:
    red, green, blue = planes[0].reshape(-1), planes[1].reshape(-1), planes[2].reshape(-1)
    total: Any = int64(0)
    for i in range(red.size):
        total += int64(_luminance(float32(red[i]), float32(green[i]), float32(blue[i])))
    return int(total / red.size + 0.5)


@kernel(void(PLANES, float32))
def saturate(planes: Array, factor: float) -> None:
    red, green, blue = planes[0].reshape(-1), planes[1].reshape(-1), planes[2].reshape(-1)
    for i in range(red.size):
        r, g, b = float32(red[i]), float32(green[i]), float32(blue[i])
        low = _luminance(r, g, b)
        red[i] = _blend(low, r, factor)
        green[i] = _blend(low, g, factor)
        blue[i] = _blend(low, b, factor)


@kernel(void(PLANES))
def grey(planes: Array) -> None:
    red, green, blue = planes[0].reshape(-1), planes[1].reshape(-1), planes[2].reshape(-1)
    for i in range(red.size):
        level = uint8(_luminance(float32(red[i]), float32(green[i]), float32(blue[i])))
        red[i] = green[i] = blue[i] = level


@kernel(void(PLANES, float32))
def solarize(planes: Array, threshold: float) -> None:
    values = planes.reshape(-1)
    for i in range(values.size):
        value = float32(values[i])
        values[i] = uint8(value if value < threshold else WHITE - value)


@inlined
def _hue(r: Number, g: Number, b: Number, high: Number, low: Number) -> Number:
    """From 0 to 255; of a grey, 0. A sixth of the circle is 1 until the last line.

    One sum for each sector, rounded once: Pillow's longer ones come to the same.
    """
    span = max(high - low, ONE)
    middle = (high - (r + g + b - high - low)) / span
    if r == high:
        sixths = ONE - middle if b == low else middle - ONE
    elif g == high:
        sixths = THREE - middle if r == low else middle + ONE
    else:
        sixths = FIVE - middle if g == low else middle + THREE
    hue = sixths / SIX * WHITE
    hue = np.floor(hue + WHITE if hue < ZERO else hue)
    return hue if high > low else ZERO


@inlined
def _channel(ahead: Number, angle: Number, saturation: Number, value: Number) -> Number:
    """Over the circle a channel is full for a third, empty for a third, and slopes between."""
    angle = angle + ahead
    angle = angle - CIRCLE if angle >= CIRCLE else angle
    lack = min(max(min(angle, TWO_THIRDS - angle), ZERO), WHITE)
    return uint8(value - np.floor(value * saturation * lack * PER_WHITE_SQUARED + HALF))


@kernel(void(PLANES, float32))
def turn_hue(planes: Array, steps: float) -> None:
    """steps: of 256 to the circle, from 0 to 255."""
    red, green, blue = planes[0].reshape(-1), planes[1].reshape(-1), planes[2].reshape(-1)
    for i in range(red.size):
        r, g, b = float32(red[i]), float32(green[i]), float32(blue[i])
        high, low = max(max(r, g), b), min(min(r, g), b)
        saturation = np.floor((high - low) / max(high, ONE) * WHITE)
        hue = _hue(r, g, b, high, low) + steps
        angle = (hue - TURN if hue >= TURN else hue) * SIX
        angle = angle - CIRCLE if angle >= CIRCLE else angle  # 255 is a full circle, as 0 is
        red[i] = _channel(FIVE * WHITE, angle, saturation, high)
        green[i] = _channel(THREE * WHITE, angle, saturation, high)
        blue[i] = _channel(WHITE, angle, saturation, high)
