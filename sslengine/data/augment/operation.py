"""What an operation is: something that is done to the pixels of a view, with its draws made.

One operation is one file in `operations/`: what it does, by Pillow and by faster ways that come to
the same bytes, and the transforms that draw it. Frozen dataclasses: plans and views are pickled.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from sslengine.data.augment.arrays import Limits, OnArrays, Pixels
from sslengine.data.augment.compiling import Array, kernel

Size = tuple[int, int]  # height, width
Planes = NDArray[np.uint8]  # 3 x height x width, contiguous


class Operation(ABC):
    """`on_pil` is what an operation is. The others compute the same bits, and need not be."""

    # What to do where images are arrays, and it cannot take them.
    instead: ClassVar[str] = "remove it"

    @abstractmethod
    def on_pil(self, image: Image.Image) -> Image.Image: ...

    def on_array(self, pixels: Pixels, limits: Limits) -> Pixels:
        """Of any number of channels and any type; see arrays.py."""
        raise TypeError(
            f"{type(self).__name__} asks for RGB: {self.instead}, or set IMAGE_MODE: RGB."
        )

    def size(self, before: Size) -> Size:
        """Of the image afterwards."""
        return before

    def on_planes(self, planes: Planes) -> Planes:
        """Of a view's own, which may be changed in place. For the compiled back-end."""
        pixels = np.asarray(self.on_pil(Image.fromarray(interleaved(planes))))
        return np.ascontiguousarray(pixels.transpose(2, 0, 1))

    def __init_subclass__(cls) -> None:
        """Who changes what an operation is, gets none of the fast ways of the original."""
        super().__init_subclass__()
        if "on_pil" in vars(cls):
            for name in ("on_array", "on_planes"):
                if name not in vars(cls):
                    setattr(cls, name, vars(Operation)[name])


class OfValues(Operation):
    """One that `on_array` says all of: images of Pillow go through it too."""

    @abstractmethod
    def on_array(self, pixels: Pixels, limits: Limits) -> Pixels: ...

    def on_pil(self, image: Image.Image) -> Image.Image:
        made = OnArrays()(np.asarray(image), [self])
        return Image.frombytes(image.mode, image.size, made.tobytes())


@kernel("uint8[:, :, ::1](uint8[:, :, ::1])")
def interleaved(planes: Array) -> Array:
    """3 x height x width -> height x width x 3"""
    _, height, width = planes.shape
    out = np.empty((height, width, 3), np.uint8)
    for y in range(height):
        red, green, blue, row = planes[0, y], planes[1, y], planes[2, y], out[y]
        for x in range(width):
            row[x, 0], row[x, 1], row[x, 2] = red[x], green[x], blue[x]
    return out
