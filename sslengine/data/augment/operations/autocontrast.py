"""Auto-contrast: each channel is stretched over all its values."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from PIL import Image, ImageOps
from torchvision.transforms import RandomAutocontrast

from sslengine.data.augment.compiling import Array, kernel
from sslengine.data.augment.draws import Draw, by_chance, draw_for
from sslengine.data.augment.operation import Operation, Planes
from sslengine.data.augment.operations.luminance import LEVELS


@dataclass(frozen=True)
class AutoContrast(Operation):
    """Tables are made in double, in Pillow's order: no byte differs."""

    def on_pil(self, image: Image.Image) -> Image.Image:
        return ImageOps.autocontrast(image)

    def on_planes(self, planes: Planes) -> Planes:
        autocontrast(planes)
        return planes


@kernel("void(uint8[:, :, ::1])")
def autocontrast(planes: Array) -> None:
    table = np.empty(LEVELS, np.uint8)
    for channel in range(3):
        values = planes[channel].reshape(-1)
        least, most = np.uint8(255), np.uint8(0)
        for i in range(values.size):
            least, most = min(least, values[i]), max(most, values[i])
        low, high = np.float64(least), np.float64(most)
        if high > low:
            scale = 255.0 / (high - low)
            offset = -low * scale
            for level in range(LEVELS):
                table[level] = np.uint8(min(max(level * scale + offset, 0.0), 255.0))
            for i in range(values.size):
                values[i] = table[values[i]]


@draw_for(RandomAutocontrast)
def _random_autocontrast(transform: Any) -> Draw:
    return partial(by_chance, transform.p, AutoContrast())
