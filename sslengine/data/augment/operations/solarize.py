"""Solarize: the values from a threshold on are inverted."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from PIL import Image, ImageOps
from torchvision.transforms import RandomSolarize

from sslengine.data.augment.arrays import Limits, Pixels, as_floats
from sslengine.data.augment.compiling import Array, kernel
from sslengine.data.augment.draws import Draw, by_chance, draw_for
from sslengine.data.augment.operation import Operation, Planes, Size
from sslengine.data.augment.operations.luminance import WHITE
from sslengine.data.augment.transform import Transform, Wraps, with_probability
from sslengine.registry import register_transform


@dataclass(frozen=True)
class Solarize(Operation):
    threshold: int

    def on_pil(self, image: Image.Image) -> Image.Image:
        return ImageOps.solarize(image, self.threshold)

    def on_array(self, pixels: Pixels, limits: Limits) -> Pixels:
        low, high = limits.declared("Solarize")
        values = as_floats(pixels)
        level = low + self.threshold / 255 * (high - low)
        return limits.keep(np.where(values < level, values, low + high - values), pixels)

    def on_planes(self, planes: Planes) -> Planes:
        solarize(planes, self.threshold)
        return planes


@kernel("void(uint8[:, :, ::1], float32)")
def solarize(planes: Array, threshold: float) -> None:
    values = planes.reshape(-1)
    for i in range(values.size):
        value = np.float32(values[i])
        values[i] = np.uint8(value if value < threshold else WHITE - value)


@draw_for(RandomSolarize)
def _random_solarize(transform: Any) -> Draw:
    # Of whole numbers, those from 127.5 on are those from 128 on.
    return partial(by_chance, transform.p, Solarize(math.ceil(transform.threshold)))


class DrawnSolarize(Transform):
    """From a threshold on; a random one by default."""

    def __init__(self, threshold: int | None = None) -> None:
        self.threshold = threshold

    def draw(self, size: Size) -> list[Operation]:
        if self.threshold is not None:
            return [Solarize(self.threshold)]
        return [Solarize(int(np.random.randint(0, 257)))]  # noqa: NPY002


@register_transform("ImgPilRandomSolarize")
class ImgPilRandomSolarize(Wraps):
    """Invert the pixels from a threshold on, with probability p."""

    def __init__(self, p: float = 0.66, threshold: int | None = None) -> None:
        """
        p: probability that an image is solarized.
        threshold: by default drawn for each image, from 0 to 256, as VISSL does. BYOL, Barlow
            Twins, VICReg and DINO have 128.
        """
        if threshold is not None and not 0 <= threshold <= 256:
            raise ValueError(f"threshold: expected a number from 0 to 256, got {threshold}.")
        self.change = with_probability(p, DrawnSolarize(threshold))
