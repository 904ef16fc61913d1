"""The draws of torchvision's crops and of its Resize: each comes to one Crop.

RandomResizedCrop, which views begin with, takes the same numbers from the same stream as its
`get_params`, which takes half as long as the resize itself: much of it is to make tensors of
constants.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torchvision.transforms import CenterCrop, RandomCrop, RandomResizedCrop, Resize

from sslengine.data.augment.draws import Draw, draw_for
from sslengine.data.augment.operation import Operation, Size
from sslengine.data.augment.operations.center_on_black import CenterOnBlack
from sslengine.data.augment.operations.crop import Crop
from sslengine.data.augment.stream import below, exp_of_uniform, uniform

TRIES = 10


@dataclass(frozen=True)
class ResizedCrop:
    """`draw(size)`: a box of a random area and shape, wherever it fits."""

    scale: tuple[float, float]
    ratio: tuple[float, float]  # width / height
    log_ratio: tuple[float, float]  # in float32, as torchvision takes it
    to: Size
    interpolation: Any

    def __call__(self, size: Size) -> list[Operation]:
        height, width = size
        for _ in range(TRIES):
            area = height * width * uniform(*self.scale)
            ratio = exp_of_uniform(*self.log_ratio)
            part_width = round(math.sqrt(area * ratio))
            part_height = round(math.sqrt(area / ratio))
            if 0 < part_width <= width and 0 < part_height <= height:
                top = below(height - part_height + 1)
                left = below(width - part_width + 1)
                box = top, left, part_height, part_width
                return [Crop(*box, self.to, self.interpolation)]
        return [Crop(*self._in_the_middle(height, width), self.to, self.interpolation)]

    def _in_the_middle(self, height: int, width: int) -> tuple[int, int, int, int]:
        """The largest box whose shape is allowed: top, left, height, width."""
        part_height, part_width = height, width
        if width / height < min(self.ratio):
            part_height = round(width / min(self.ratio))
        elif width / height > max(self.ratio):
            part_width = round(height * max(self.ratio))
        return (height - part_height) // 2, (width - part_width) // 2, part_height, part_width


@draw_for(RandomResizedCrop)
def _random_resized_crop(transform: Any) -> Draw:
    log_ratio = torch.log(torch.tensor(transform.ratio)).tolist()
    return ResizedCrop(
        tuple(transform.scale),
        tuple(transform.ratio),
        tuple(log_ratio),
        tuple(transform.size),
        transform.interpolation,
    )


@draw_for(RandomCrop)
def _random_crop(transform: Any) -> Draw | None:
    pads = transform.padding is not None or transform.pad_if_needed
    return None if pads else partial(_draw_random_crop, transform)


def _draw_random_crop(transform: Any, size: Size) -> list[Operation]:
    top, left, height, width = transform.get_params(_of_size(size), transform.size)
    return [Crop(top, left, height, width, to=(height, width))]


@draw_for(CenterCrop)
def _center_crop(transform: Any) -> Draw:
    return partial(_draw_center_crop, transform)


def _draw_center_crop(transform: Any, size: Size) -> list[Operation]:
    height, width = transform.size
    if height > size[0] or width > size[1]:
        return [CenterOnBlack((height, width))]
    # As torchvision rounds them: a half to the even number.
    top, left = round((size[0] - height) / 2.0), round((size[1] - width) / 2.0)
    return [Crop(top, left, height, width, to=(height, width))]


@draw_for(Resize)
def _resize(transform: Any) -> Draw | None:
    return None if transform.max_size is not None else partial(_draw_resize, transform)


def _draw_resize(transform: Any, size: Size) -> list[Operation]:
    to = _resized(transform.size, size)
    return [] if to == size else [Crop(0, 0, *size, to=to, interpolation=transform.interpolation)]


def _resized(wanted: int | Sequence[int], size: Size) -> Size:
    """One number is for the shorter side; the longer follows, rounded down."""
    numbers = [wanted] if isinstance(wanted, int) else list(wanted)
    if len(numbers) == 2:
        return numbers[0], numbers[1]
    (side,) = numbers
    height, width = size
    if height <= width:
        return side, int(side * width / height)
    return int(side * height / width), side


def _of_size(size: Size) -> Tensor:
    """Replaces an image where only its size is needed; it holds one value in memory."""
    return torch.empty(()).expand(size)
