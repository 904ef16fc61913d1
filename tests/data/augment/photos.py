"""Images that change under a crop as photographs do: smooth, with some noise."""

from __future__ import annotations

import numpy as np
from PIL import Image


def photo(number: int, height: int = 60, width: int = 75) -> Image.Image:
    draw = np.random.default_rng(number)
    coarse = Image.fromarray(draw.integers(0, 256, (6, 7, 3), np.uint8))
    smooth = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC), np.int16)
    noisy = smooth + draw.integers(-9, 10, smooth.shape)
    return Image.fromarray(noisy.clip(0, 255).astype(np.uint8))
