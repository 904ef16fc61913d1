"""What an operation is: something that is done to the pixels of a view, with its draws made.

One operation is one file in `operations/`: what it does, by Pillow and by faster ways that come to
the same bytes, and the transforms that draw it. Frozen dataclasses: plans and views are pickled.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from sslengine.data.augment.arrays import Limits, OnArrays, Pixels
from sslengine.data.augment.compiling import Array, kernel

Size = tuple[int, int]  # height, width
Planes = NDArray[np.uint8]  # 3 x height x width, contiguous


class Given(NamedTuple):
    """To a kernel for the device."""

    parameters: Tensor  # of each view, float32 [n]
    number: int = 0  # by which views were sorted
    table: Tensor | None = None


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

    @property
    def parameter(self) -> float:
        """What `on_device` is to know of it, as float32 holds it."""
        return 0.0

    @staticmethod
    def sorted_out(parameters: NDArray[np.float32]) -> tuple[NDArray[Any], NDArray[np.float32]]:
        """On the host: a number for each view, of which those with the same number go together,
        and the parameters that the kernel gets."""
        return np.zeros(len(parameters), np.int64), parameters

    @staticmethod
    def table() -> Tensor | None:
        """What `on_device` looks up. It travels with the batch: nothing is left on the host."""
        return None

    @staticmethod
    def on_device(pixels: Tensor, given: Given) -> Tensor:
        """Of a batch, uint8 [n, 3, height, width]. The host does not wait for the device."""
        raise NotImplementedError

    def __init_subclass__(cls) -> None:
        """Who changes what an operation is, gets none of the fast ways of the original."""
        super().__init_subclass__()
        if "on_pil" in vars(cls):
            for name in ("on_array", "on_planes", "on_device"):
                if name not in vars(cls):
                    setattr(cls, name, vars(Operation)[name])


class OfValues(Operation):
    """One that `on_array` says all of: images of Pillow go through it too."""

    @abstractmethod
    def on_array(self, pixels: Pixels, limits: Limits) -> Pixels: ...

    def on_pil(self, image: Image.Image) -> Image.Image:
        made = OnArrays()(np.asarray(image), [self])
        return Image.frombytes(image.mode, image.size, made.tobytes())


def has_kernel(kind: type[Operation]) -> bool:
    """For the device."""
    return kind.on_device is not Operation.on_device


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
