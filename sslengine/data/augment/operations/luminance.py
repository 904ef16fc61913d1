"""What grey level a colour has, and what lies between two images: constants and device kernels that
several operations share. Pillow's, to the bit, by integers and by floats in Pillow's order."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

# ITU-R 601 with 16 bits after the point. Sums stay below 2^24: float32 holds them exactly.
RED, GREEN, BLUE, ROUND = (np.float32(weight) for weight in (19595, 38470, 7471, 1 << 15))
FROM_16_BITS = np.float32(1 / (1 << 16))
ZERO, WHITE = np.float32(0), np.float32(255)


def luminance(pixels: Tensor) -> Tensor:
    """Pillow's "L": int32 [n, 1, height, width]."""
    red, green, blue = pixels.int().split(1, dim=1)
    grey: Tensor = (19595 * red + 38470 * green + 7471 * blue + (1 << 15)) >> 16
    return grey


def blend(low: Tensor, pixels: Tensor, factors: Tensor) -> Tensor:
    """`low` at factor 0, the pixels at 1."""
    return as_bytes((pixels - low).mul_(each(factors)).add_(low))


def as_bytes(values: Tensor) -> Tensor:
    return values.clamp_(0, 255).to(torch.uint8)  # towards zero


def each(parameters: Tensor) -> Tensor:
    """One for each image."""
    return parameters.view(-1, 1, 1, 1)
