"""The draw of torchvision's RandomResizedCrop, which each view of an image begins with.

The same numbers from the same stream as its `get_params`, which takes half as long as the resize
itself: much of it is to make tensors of constants.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from sslengine.data.plan.ops import Crop, Op, Size
from sslengine.data.plan.torch_stream import below, exp_of_uniform, uniform

TRIES = 10


@dataclass(frozen=True)
class ResizedCrop:
    """`draw(size)`: a box of a random area and shape, wherever it fits."""

    scale: tuple[float, float]
    ratio: tuple[float, float]  # width / height
    log_ratio: tuple[float, float]  # in float32, as torchvision takes it
    to: Size
    interpolation: Any

    @classmethod
    def of(cls, transform: Any) -> ResizedCrop:
        log_ratio = torch.log(torch.tensor(transform.ratio)).tolist()
        return cls(
            tuple(transform.scale),
            tuple(transform.ratio),
            tuple(log_ratio),
            tuple(transform.size),
            transform.interpolation,
        )

    def __call__(self, size: Size) -> list[Op]:
        return [Crop(*self._box(size), to=self.to, interpolation=self.interpolation)]

    def _box(self, size: Size) -> tuple[int, int, int, int]:
        """Top, left, height, width."""
        height, width = size
        for _ in range(TRIES):
            area = height * width * uniform(*self.scale)
            ratio = exp_of_uniform(*self.log_ratio)
            part_width = round(math.sqrt(area * ratio))
            part_height = round(math.sqrt(area / ratio))
            if 0 < part_width <= width and 0 < part_height <= height:
                top = below(height - part_height + 1)
                left = below(width - part_width + 1)
                return top, left, part_height, part_width
        return self._in_the_middle(height, width)

    def _in_the_middle(self, height: int, width: int) -> tuple[int, int, int, int]:
        """The largest box whose shape is allowed."""
        part_height, part_width = height, width
        if width / height < min(self.ratio):
            part_height = round(width / min(self.ratio))
        elif width / height > max(self.ratio):
            part_width = round(height * max(self.ratio))
        return (height - part_height) // 2, (width - part_width) // 2, part_height, part_width
