"""Images that kernels are compared on, as Pillow's and as planes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from sslengine.data.augment.operation import Operation

Pixels = NDArray[np.uint8]


def noise(height: int, width: int, seed: int = 0) -> Pixels:
    """Planes: 3 x height x width."""
    return np.random.default_rng(seed).integers(0, 256, (3, height, width), np.uint8)


def every_colour() -> Pixels:
    number = np.arange(1 << 24, dtype=np.uint32)
    planes = [(number >> shift & 255).astype(np.uint8) for shift in (16, 8, 0)]
    return np.stack(planes).reshape(3, 4096, 4096)


def as_image(planes: Pixels) -> Image.Image:
    return Image.fromarray(np.ascontiguousarray(planes.transpose(1, 2, 0)))


def as_planes(image: Image.Image) -> Pixels:
    return np.ascontiguousarray(np.asarray(image).transpose(2, 0, 1))


def by_pillow(op: Operation, planes: Pixels) -> Pixels:
    return as_planes(op.on_pil(as_image(planes)))
