"""`synthetic`: images without content, for tests and speed measurements. Needs no disk."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from PIL import Image, ImageFilter

from sslengine.data.options import SplitOptions, SyntheticOptions, own
from sslengine.data.sources.base import GeneratedSource, grey_image
from sslengine.registry import register_data_source


@register_data_source("synthetic")
class SyntheticSource(GeneratedSource):
    """Grey images, or with RANDOM_SYNTHETIC_IMAGES smooth coloured noise drawn from the index."""

    default_lengths: ClassVar = {"TRAIN": 50_000, "TEST": 50_000}

    def __init__(self, options: SplitOptions, split: str, position: int = 0) -> None:
        super().__init__(options, split, position)
        drawn = own(options, SyntheticOptions)
        self.num_classes = max(1, drawn.RANDOM_SYNTHETIC_LABELS)
        self._side = options.DEFAULT_GRAY_IMG_SIZE
        self._random = drawn.RANDOM_SYNTHETIC_IMAGES

    def image(self, index: int) -> Image.Image:
        return _noise(index, self._side) if self._random else grey_image(self._side)

    def label(self, index: int) -> int:
        return index % self.num_classes


def _noise(index: int, side: int) -> Image.Image:
    draw = np.random.default_rng(index)
    coarse = max(2, side // 16)
    small = draw.integers(0, 256, (coarse, coarse, 3), dtype=np.uint8)
    image = Image.fromarray(small).resize((side, side))
    return image.filter(ImageFilter.GaussianBlur(draw.uniform(coarse / 2, coarse * 2)))
