"""Turns: by quarters of a circle, exactly, and by any angle."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from PIL import Image

from sslengine.data.augment.arrays import Limits, Pixels
from sslengine.data.augment.operation import Operation, Planes, Size


@dataclass(frozen=True)
class QuarterTurns(Operation):
    """So many, from 1 to 3, counter-clockwise. No pixel is lost, nor is one made up."""

    times: int

    def on_pil(self, image: Image.Image) -> Image.Image:
        kind = Image.Transpose
        turns = {1: kind.ROTATE_90, 2: kind.ROTATE_180, 3: kind.ROTATE_270}
        return image.transpose(turns[self.times])

    def on_array(self, pixels: Pixels, limits: Limits) -> Pixels:
        return np.rot90(pixels, self.times, (0, 1))

    def size(self, before: Size) -> Size:
        return before if self.times == 2 else before[::-1]

    def on_planes(self, planes: Planes) -> Planes:
        turned: Planes = np.rot90(planes, self.times, (1, 2)).copy()
        return turned


@dataclass(frozen=True)
class Turn(Operation):
    """By any angle, counter-clockwise, in its old frame: black where nothing is."""

    degrees: float

    def on_pil(self, image: Image.Image) -> Image.Image:
        return image.rotate(self.degrees)

    def on_array(self, pixels: Pixels, limits: Limits) -> Pixels:
        """Pillow turns the numbers of the pixels; zero where nothing is."""
        height, width, channels = pixels.shape
        numbers = np.arange(1, height * width + 1, dtype=np.int32).reshape(height, width)
        from_where = np.asarray(Image.fromarray(numbers).rotate(self.degrees))
        nothing = np.zeros((1, channels), pixels.dtype)
        flat: Pixels = np.concatenate([nothing, pixels.reshape(-1, channels)])
        turned: Pixels = flat[from_where]
        return turned


def turned(angle: float) -> list[Operation]:
    """Counter-clockwise by so many degrees, from 0 to 360."""
    if angle % 90:
        return [Turn(angle)]
    return [QuarterTurns(int(angle) // 90)] if angle else []
