"""Equalize: each channel's values are spread, so that about as many pixels have each."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from PIL import Image, ImageOps
from torchvision.transforms import RandomEqualize

from sslengine.data.augment.compiling import Array, kernel
from sslengine.data.augment.draws import Draw, by_chance, draw_for
from sslengine.data.augment.operation import Operation, Planes
from sslengine.data.augment.operations.luminance import LEVELS


@dataclass(frozen=True)
class Equalize(Operation):
    """Tables are made in integers, as Pillow's are."""

    def on_pil(self, image: Image.Image) -> Image.Image:
        return ImageOps.equalize(image)

    def on_planes(self, planes: Planes) -> Planes:
        equalize(planes)
        return planes


@kernel("void(uint8[:, :, ::1])")
def equalize(planes: Array) -> None:
    table = np.empty(LEVELS, np.uint8)
    for channel in range(3):
        values = planes[channel].reshape(-1)
        counts = np.zeros(LEVELS, np.int64)
        most = np.uint8(0)
        for i in range(values.size):
            counts[values[i]] += 1
            most = max(most, values[i])
        step = (values.size - counts[most]) // 255
        if step > 0:
            passed = np.int64(step // 2)
            for level in range(LEVELS):
                table[level] = np.uint8(min(passed // step, 255))
                passed += counts[level]
            for i in range(values.size):
                values[i] = table[values[i]]


@draw_for(RandomEqualize)
def _random_equalize(transform: Any) -> Draw:
    return partial(by_chance, transform.p, Equalize())
