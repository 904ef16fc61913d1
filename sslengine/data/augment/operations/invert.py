"""White becomes black."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from PIL import Image, ImageOps
from torchvision.transforms import RandomInvert

from sslengine.data.augment.arrays import Limits, Pixels, as_floats
from sslengine.data.augment.draws import Draw, by_chance, draw_for
from sslengine.data.augment.operation import Operation, Planes


@dataclass(frozen=True)
class Invert(Operation):
    def on_pil(self, image: Image.Image) -> Image.Image:
        return ImageOps.invert(image)

    def on_array(self, pixels: Pixels, limits: Limits) -> Pixels:
        low, high = limits.declared("Invert")
        return limits.keep(low + high - as_floats(pixels), pixels)

    def on_planes(self, planes: Planes) -> Planes:
        return np.invert(planes, out=planes)


@draw_for(RandomInvert)
def _random_invert(transform: Any) -> Draw:
    return partial(by_chance, transform.p, Invert())
