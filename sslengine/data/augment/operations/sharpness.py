"""Sharpness: at 0 smoothed with the neighbours, at 1 unchanged, above 1 sharpened.

Smooth is a sum over 3 x 3 pixels, the one in the middle five times, by 13, rounded: it never comes
to a half. The outermost pixels have not all neighbours, and stay.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from PIL import Image, ImageEnhance
from torchvision.transforms import RandomAdjustSharpness

from sslengine.data.augment.compiling import Array, kernel
from sslengine.data.augment.draws import Draw, by_chance, draw_for
from sslengine.data.augment.operation import Operation, Planes
from sslengine.data.augment.operations.luminance import WHITE, ZERO

HALF, FOUR, PER_WEIGHT = np.float32(0.5), np.float32(4), np.float32(1 / 13)


@dataclass(frozen=True)
class Sharpness(Operation):
    factor: float

    def on_pil(self, image: Image.Image) -> Image.Image:
        return ImageEnhance.Sharpness(image).enhance(self.factor)

    def on_planes(self, planes: Planes) -> Planes:
        return sharpened(planes, self.factor)  # type: ignore[no-any-return]


@kernel("uint8[:, :, ::1](uint8[:, :, ::1], float32)")
def sharpened(planes: Array, factor: float) -> Array:
    _, height, width = planes.shape
    out = planes.copy()
    sums = np.empty(width, np.float32)
    for channel in range(3):
        old = planes[channel]
        for y in range(1, height - 1):
            above, row, below, into = old[y - 1], old[y], old[y + 1], out[channel, y, 1:]
            for x in range(width):
                sums[x] = np.float32(above[x]) + np.float32(row[x]) + np.float32(below[x])
            left, middle, right, inner = sums, sums[1:], sums[2:], row[1:]
            for x in range(width - 2):
                value = np.float32(inner[x])
                total = left[x] + middle[x] + right[x] + FOUR * value
                smooth = np.floor(total * PER_WEIGHT + HALF)
                sharp = smooth + factor * (value - smooth)
                into[x] = np.uint8(min(max(sharp, ZERO), WHITE))
    return out


@draw_for(RandomAdjustSharpness)
def _random_sharpness(transform: Any) -> Draw:
    return partial(by_chance, transform.p, Sharpness(transform.sharpness_factor))
