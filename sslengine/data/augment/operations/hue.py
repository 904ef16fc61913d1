"""Hue: the circle of colours is turned, through Pillow's HSV of 8 bits a channel.

Where Pillow computes in double, float32 comes to the same bytes: tests compare all 2^24 colours.
Integers are float32 too, because numba makes 64 bits of each, and loops over these are slow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from PIL import Image
from torchvision.transforms import functional

from sslengine.data.augment.compiling import Array, Number, inlined, kernel
from sslengine.data.augment.operation import Operation, Planes
from sslengine.data.augment.operations.luminance import WHITE, ZERO

F: Any = functional  # takes images as well as the tensors that its hints name


@dataclass(frozen=True)
class Hue(Operation):
    """Turn the hue by `shift` of the circle, from -0.5 to 0.5."""

    instead: ClassVar[str] = "write ColorJitter with saturation: 0 and hue: 0"

    shift: float

    @property
    def as_byte(self) -> int:
        """torchvision's conversion, whose sign it takes off by wrapping around."""
        return int(self.shift * 255) % 256

    def on_pil(self, image: Image.Image) -> Any:
        return F.adjust_hue(image, self.shift)

    def on_planes(self, planes: Planes) -> Planes:
        turn_hue(planes, self.as_byte)
        return planes


# ---- compiled

HALF, ONE, THREE, FIVE, SIX = (np.float32(number) for number in (0.5, 1, 3, 5, 6))
TURN = np.float32(256)  # a turn of the hue takes so many steps of a byte
CIRCLE, TWO_THIRDS = np.float32(6 * 255), np.float32(4 * 255)
PER_WHITE_SQUARED = np.float32(1 / 255**2)


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
    return np.uint8(value - np.floor(value * saturation * lack * PER_WHITE_SQUARED + HALF))


@kernel("void(uint8[:, :, ::1], float32)")
def turn_hue(planes: Array, steps: float) -> None:
    """steps: of 256 to the circle, from 0 to 255."""
    red, green, blue = planes[0].reshape(-1), planes[1].reshape(-1), planes[2].reshape(-1)
    for i in range(red.size):
        r, g, b = np.float32(red[i]), np.float32(green[i]), np.float32(blue[i])
        high, low = max(max(r, g), b), min(min(r, g), b)
        saturation = np.floor((high - low) / max(high, ONE) * WHITE)
        hue = _hue(r, g, b, high, low) + steps
        angle = (hue - TURN if hue >= TURN else hue) * SIX
        angle = angle - CIRCLE if angle >= CIRCLE else angle  # 255 is a full circle, as 0 is
        red[i] = _channel(FIVE * WHITE, angle, saturation, high)
        green[i] = _channel(THREE * WHITE, angle, saturation, high)
        blue[i] = _channel(WHITE, angle, saturation, high)
