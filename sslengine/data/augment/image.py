"""What an image is while transforms are at work, and what is done to any.

    Rgb             8-bit RGB for compiled kernels: an array height x width x 3 in any memory order
    a PIL image     where there are no compiled kernels
    another array   height x width x channels, of any type (IMAGE_MODE: stored): computed in floats

An Rgb that several hold is read-only: who changes pixels in place asks for its `own`, which copies
such an image. A crop lies in memory as planes, so that nothing is moved on the way to a tensor; of
which order an image is, only `own` and `interleaved` need to know.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from sslengine.data.augment.compiling import Array, kernel

Size = tuple[int, int]  # height, width
Planes = NDArray[np.uint8]  # 3 x height x width, contiguous
Pixels = NDArray[Any]  # height x width x channels


class Rgb(np.ndarray[Any, np.dtype[np.uint8]]):
    """8-bit RGB that the engine decoded. A plain array of the same shape is somebody else's."""


class Limits(NamedTuple):
    """The least and the greatest value of images that are arrays of floats."""

    low: float = -math.inf
    high: float = math.inf

    def find(self, pixels: Pixels) -> Limits:
        """Return those of this image: whole numbers have the limits of their type."""
        if pixels.dtype.kind in "ui":
            whole = np.iinfo(pixels.dtype)
            return Limits(float(whole.min), float(whole.max))
        return self

    def declared(self, what: str) -> Limits:
        """Return these limits; raise TypeError where no PIXEL_RANGE gave them."""
        if math.isinf(self.low):
            raise TypeError(
                f"{what} depends on which values are black and white: set "
                f"PIXEL_RANGE: [low, high], or remove it."
            )
        return self

    def keep(self, values: NDArray[Any], like: Pixels) -> Pixels:
        """Clip values to the type of `like`; whole numbers are cut off towards zero, as Pillow
        does in its blends."""
        clipped = values if math.isinf(self.low) else np.clip(values, self.low, self.high)
        return clipped.astype(like.dtype, copy=False)

    def round(self, values: NDArray[Any], like: Pixels) -> Pixels:
        """Clip values to the type of `like`, rounded where that has whole numbers."""
        return self.keep(np.rint(values) if like.dtype.kind in "ui" else values, like)


NO_LIMITS = Limits()


def is_array(image: Any) -> bool:
    return isinstance(image, np.ndarray) and image.ndim in (2, 3)


def is_image(image: Any) -> bool:
    """Is it one that the functions of operations take? A tensor, or a grey PIL image, is not."""
    if isinstance(image, Image.Image):
        return image.mode == "RGB"
    return is_array(image)


def size_of(image: Any) -> Size:
    """Return height and width."""
    if isinstance(image, Image.Image):
        return image.height, image.width
    return image.shape[0], image.shape[1]


def refuse_array(what: str, instead: str = "remove it") -> NoReturn:
    """Raise TypeError: the operation means nothing for arrays of any channels."""
    raise TypeError(f"{what} asks for RGB: {instead}, or set IMAGE_MODE: RGB.")


# ---- 8-bit RGB


def make_rgb(image: Any) -> Any:
    """Return an RGB image of Pillow's as an array that may be shared; anything else as it is."""
    if isinstance(image, Image.Image) and image.mode == "RGB":
        return share(np.asarray(image).view(Rgb))
    return image


def make_pil(image: Rgb) -> Image.Image:
    """Return a PIL image, whose pixels are a copy."""
    return Image.fromarray(interleaved(image))


def make_bytes(image: Any) -> Tensor:
    """Return an RGB image as a contiguous uint8 tensor 3 x height x width that may be changed."""
    if type(image) is Rgb:
        return torch.from_numpy(own(image)[1])
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()


def share(image: Any) -> Any:
    """Return the image, which is read-only from now on."""
    if type(image) is Rgb:
        image.flags.writeable = False
    return image


def own(image: Rgb) -> tuple[Rgb, Planes]:
    """Return an image that may be changed in place, and its planes in memory: the image itself, or
    a copy of one that is shared or does not lie as planes."""
    planes = image.transpose(2, 0, 1)
    flags = planes.flags
    if flags.c_contiguous and flags.writeable:
        return image, planes
    if flags.c_contiguous or image.strides[2] != 1:  # planes, or a part of them
        planes = planes.copy()
    else:
        planes = np.empty(planes.shape, np.uint8)
        split(np.ascontiguousarray(image), planes)
    return view_planes(planes), planes


def view_planes(planes: Planes) -> Rgb:
    """Return the image that lies in memory as these planes."""
    image: Rgb = planes.transpose(1, 2, 0).view(Rgb)
    return image


def interleaved(image: Rgb) -> NDArray[np.uint8]:
    """Return the pixels as rows of three bytes each, contiguous: not to be written to."""
    if image.flags.c_contiguous or image.strides[2] == 1:
        return np.ascontiguousarray(image)
    made = np.empty(image.shape, np.uint8)
    interleave(np.ascontiguousarray(image.transpose(2, 0, 1)), made)
    return made


@kernel("void(Array(uint8, 3, 'C', True), uint8[:, :, ::1])")
def split(image: Array, planes: Array) -> None:
    """height x width x 3 -> 3 x height x width"""
    _, height, width = planes.shape
    for y in range(height):
        red, green, blue, row = planes[0, y], planes[1, y], planes[2, y], image[y]
        for x in range(width):
            red[x], green[x], blue[x] = row[x, 0], row[x, 1], row[x, 2]


@kernel("void(Array(uint8, 3, 'C', True), uint8[:, :, ::1])")
def interleave(planes: Array, image: Array) -> None:
    """3 x height x width -> height x width x 3"""
    _, height, width = planes.shape
    for y in range(height):
        red, green, blue, row = planes[0, y], planes[1, y], planes[2, y], image[y]
        for x in range(width):
            row[x, 0], row[x, 1], row[x, 2] = red[x], green[x], blue[x]


# ---- other arrays


def make_floats(pixels: Pixels) -> NDArray[Any]:
    """Return float32 where it holds all values of the type; float64 elsewhere."""
    return pixels.astype(np.result_type(pixels.dtype, np.float32), copy=False)


def add_channels(pixels: Pixels) -> Pixels:
    """Return height x width x channels, also of an array without channels."""
    if not is_array(pixels):
        raise TypeError(f"expected an image, got {type(pixels).__name__}.")
    return pixels.reshape(*pixels.shape[:2], -1)


def shape_like(made: Pixels, before: Pixels) -> Pixels:
    """Return what was made, contiguous, and without channels where there were none."""
    return np.array(made.reshape(*made.shape[:2], *before.shape[2:]), order="C")
