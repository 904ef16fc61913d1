"""Posterize: the upper bits of each value stay."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from PIL import Image, ImageOps
from torchvision.transforms import RandomPosterize

from sslengine.data.augment.draws import Draw, by_chance, draw_for
from sslengine.data.augment.operation import Operation, Planes


@dataclass(frozen=True)
class Posterize(Operation):
    bits: int  # from 1 to 8

    @property
    def kept(self) -> int:
        """The bits of a value that stay, as a number."""
        return 256 - (1 << 8 - self.bits)

    def on_pil(self, image: Image.Image) -> Image.Image:
        return ImageOps.posterize(image, self.bits)

    def on_planes(self, planes: Planes) -> Planes:
        np.bitwise_and(planes, np.uint8(self.kept), out=planes)
        return planes


@draw_for(RandomPosterize)
def _random_posterize(transform: Any) -> Draw | None:
    # Whether zero bits are an error depends on Pillow's version.
    known = transform.bits in range(1, 9)
    return partial(by_chance, transform.p, Posterize(transform.bits)) if known else None
