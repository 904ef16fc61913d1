"""Contrast: away from the image's mean grey level, or towards it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image, ImageEnhance

from sslengine.data.augment.arrays import Limits, Pixels, as_floats
from sslengine.data.augment.compiling import Array, kernel
from sslengine.data.augment.operation import Operation, Planes
from sslengine.data.augment.operations.brightness import blend_with
from sslengine.data.augment.operations.luminance import (
    BLUE,
    FROM_16_BITS,
    GREEN,
    RED,
    ROUND,
)


@dataclass(frozen=True)
class Contrast(Operation):
    factor: float

    def on_pil(self, image: Image.Image) -> Any:
        return ImageEnhance.Contrast(image).enhance(self.factor)

    def on_array(self, pixels: Pixels, limits: Limits) -> Pixels:
        """About the mean of all channels: there is no grey level of them."""
        values, mean = as_floats(pixels), float(pixels.mean(dtype=np.float64))
        return limits.keep(mean + self.factor * (values - mean), pixels)

    def on_planes(self, planes: Planes) -> Planes:
        blend_with(planes, mean_luminance(planes), self.factor)
        return planes


@kernel("int64(uint8[:, :, ::1])")
def mean_luminance(planes: Array) -> int:
    red, green, blue = planes[0].reshape(-1), planes[1].reshape(-1), planes[2].reshape(-1)
    total: Any = np.int64(0)
    for i in range(red.size):
        r, g, b = np.float32(red[i]), np.float32(green[i]), np.float32(blue[i])
        total += np.int64(np.floor((RED * r + GREEN * g + BLUE * b + ROUND) * FROM_16_BITS))
    return int(total / red.size + 0.5)
