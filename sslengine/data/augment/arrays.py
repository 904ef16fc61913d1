"""Images that are arrays, height x width x channels: any number of channels, of any type.

Operations that mean something for them have `on_array`, which gets the pixels and the limits of
their values: those of a type of whole numbers; of floats the two numbers of PIXEL_RANGE, and none
where it is not given.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[Any]  # height x width x channels; on_array does not write to it


class Limits(NamedTuple):
    """Of values: the least and the greatest that an operation makes."""

    low: float = -math.inf
    high: float = math.inf

    @classmethod
    def of(cls, pixels: Pixels, declared: Limits | None) -> Limits:
        if pixels.dtype.kind in "ui":
            whole = np.iinfo(pixels.dtype)
            return cls(float(whole.min), float(whole.max))
        return declared or cls()

    def declared(self, what: str) -> Limits:
        """For an operation that depends on which values are black and white."""
        if math.isinf(self.low):
            raise TypeError(
                f"{what} depends on which values are black and white: set "
                f"PIXEL_RANGE: [low, high], or remove it."
            )
        return self

    def keep(self, values: NDArray[Any], like: Pixels) -> Pixels:
        """Clipped, in the type of `like`; whole numbers are cut off towards zero, as Pillow does
        in its blends."""
        clipped = values if math.isinf(self.low) else np.clip(values, self.low, self.high)
        return clipped.astype(like.dtype, copy=False)

    def rounded(self, values: NDArray[Any], like: Pixels) -> Pixels:
        return self.keep(np.rint(values) if like.dtype.kind in "ui" else values, like)


def as_floats(pixels: Pixels) -> NDArray[Any]:
    """float32 where it holds all values of the type; float64 elsewhere."""
    return pixels.astype(np.result_type(pixels.dtype, np.float32), copy=False)


def window(pixels: Pixels, top: int, left: int, height: int, width: int) -> Pixels:
    """A part of the image, with zeros where it reaches beyond."""
    bottom, right = top + height, left + width
    part = pixels[max(top, 0) : max(bottom, 0), max(left, 0) : max(right, 0)]
    if part.shape[:2] == (height, width):
        return part
    frame = np.zeros((height, width, pixels.shape[2]), pixels.dtype)
    above, before = max(-top, 0), max(-left, 0)
    frame[above : above + part.shape[0], before : before + part.shape[1]] = part
    return frame


class OnArrays:
    """`render(pixels, operations)`, as a back-end renders an image."""

    def __init__(self, declared: tuple[float, float] | None = None) -> None:
        self.declared = Limits(*declared) if declared else None

    def __call__(self, source: Any, ops: Sequence[Any]) -> Pixels:
        pixels = source if source.ndim == 3 else source[..., None]
        limits = Limits.of(pixels, self.declared)
        for operation in ops:
            pixels = operation.on_array(pixels, limits)
        # A copy where nothing was done: what follows may write to it.
        return np.array(pixels if source.ndim == 3 else pixels[..., 0], order="C")


def is_array(image: Any) -> bool:
    return isinstance(image, np.ndarray) and image.ndim in (2, 3)
