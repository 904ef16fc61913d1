"""Brightness: away from black, or towards it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image, ImageEnhance

from sslengine.data.augment.arrays import Limits, Pixels, as_floats
from sslengine.data.augment.compiling import Array, kernel
from sslengine.data.augment.operation import Operation, Planes
from sslengine.data.augment.operations.luminance import WHITE, ZERO


@dataclass(frozen=True)
class Brightness(Operation):
    factor: float

    def on_pil(self, image: Image.Image) -> Any:
        return ImageEnhance.Brightness(image).enhance(self.factor)

    def on_array(self, pixels: Pixels, limits: Limits) -> Pixels:
        return limits.keep(as_floats(pixels) * self.factor, pixels)

    def on_planes(self, planes: Planes) -> Planes:
        blend_with(planes, 0, self.factor)
        return planes


@kernel("void(uint8[:, :, ::1], float32, float32)")
def blend_with(planes: Array, low: float, factor: float) -> None:
    """Away from the level `low`, or towards it. In float32 as in Pillow."""
    values = planes.reshape(-1)
    for i in range(values.size):
        value = low + factor * (np.float32(values[i]) - low)
        values[i] = np.uint8(min(max(value, ZERO), WHITE))
