"""Images that operations are compared on, as Pillow's and as planes for kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from sslengine.data.augment.image import Rgb, view_planes

Pixels = NDArray[np.uint8]
Operation = Callable[[Any], Any]


def compile_or_skip() -> None:
    pytest.importorskip("sslengine.data.augment.compiled", reason="numba is not installed")


def noise(height: int, width: int, seed: int = 0) -> Pixels:
    """Planes: 3 x height x width."""
    return np.random.default_rng(seed).integers(0, 256, (3, height, width), np.uint8)


def every_colour() -> Pixels:
    number = np.arange(1 << 24, dtype=np.uint32)
    planes = [(number >> shift & 255).astype(np.uint8) for shift in (16, 8, 0)]
    return np.stack(planes).reshape(3, 4096, 4096)


def as_image(planes: Pixels) -> Image.Image:
    return Image.fromarray(np.ascontiguousarray(planes.transpose(1, 2, 0)))


def as_planes(image: Any) -> Pixels:
    return np.ascontiguousarray(np.asarray(image).transpose(2, 0, 1))


def by_pillow(operation: Operation, planes: Pixels) -> Pixels:
    return as_planes(operation(as_image(planes)))


def by_kernel(operation: Operation, planes: Pixels) -> Pixels:
    compile_or_skip()
    made = operation(view_planes(planes.copy()))
    assert type(made) is Rgb
    return as_planes(made)


def describe(operation: Any) -> str:
    """The operation with its arguments, as an id of a test."""
    given = getattr(operation, "keywords", {})
    name = getattr(operation, "func", operation).__name__
    return " ".join([name, *(str(value) for value in given.values())])
