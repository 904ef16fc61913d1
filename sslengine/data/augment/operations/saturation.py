"""Saturation: away from grey, or towards it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from PIL import Image, ImageEnhance

from sslengine.data.augment.compiling import Array, Number, inlined, kernel
from sslengine.data.augment.operation import Operation, Planes
from sslengine.data.augment.operations.luminance import (
    BLUE,
    FROM_16_BITS,
    GREEN,
    RED,
    ROUND,
    WHITE,
    ZERO,
)


@dataclass(frozen=True)
class Saturation(Operation):
    instead: ClassVar[str] = "write ColorJitter with saturation: 0 and hue: 0"

    factor: float

    def on_pil(self, image: Image.Image) -> Any:
        return ImageEnhance.Color(image).enhance(self.factor)

    def on_planes(self, planes: Planes) -> Planes:
        saturate(planes, self.factor)
        return planes


@inlined
def _blend(low: Number, value: Number, factor: Number) -> Number:
    return np.uint8(min(max(low + factor * (value - low), ZERO), WHITE))


@kernel("void(uint8[:, :, ::1], float32)")
def saturate(planes: Array, factor: float) -> None:
    red, green, blue = planes[0].reshape(-1), planes[1].reshape(-1), planes[2].reshape(-1)
    for i in range(red.size):
        r, g, b = np.float32(red[i]), np.float32(green[i]), np.float32(blue[i])
        low = np.floor((RED * r + GREEN * g + BLUE * b + ROUND) * FROM_16_BITS)
        red[i] = _blend(low, r, factor)
        green[i] = _blend(low, g, factor)
        blue[i] = _blend(low, b, factor)
