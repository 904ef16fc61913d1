"""What ToTensor and Normalize do to pixels, put off until a batch is on the device.

In float32 and in the same order of operations, so that the values are the same to the bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torchvision.transforms import Normalize, ToTensor

from sslengine.data.augment.transforms.conversion import ImgPilToRawTensor, ImgToTensor

CPU = torch.device("cpu")
# By exact type: what a subclass does is not known. What each divides pixels by.
CONVERSIONS: dict[type, tuple[float, ...]] = {
    ToTensor: (255.0,),
    ImgToTensor: (255.0,),
    ImgPilToRawTensor: (),
}


class Finish:
    """`finish.on(device)(pixels)`: float32 of uint8 pixels [...] x channels x height x width."""

    def __init__(self, conversion: Any, normalizations: Sequence[Normalize] = ()) -> None:
        divisors = CONVERSIONS[type(conversion)]
        self._operations = [("div", _column(divisor)) for divisor in divisors]
        for each in normalizations:
            self._operations += [("sub", _column(each.mean)), ("div", _column(each.std))]

    def on(self, device: torch.device) -> FinishOn:
        """With its numbers on the device, so that no step waits for them.

        Tensors, not numbers: instead of dividing by a number CUDA multiplies with its inverse.
        """
        return FinishOn(
            [(name, torch.from_numpy(numbers).to(device)) for name, numbers in self._operations]
        )


@dataclass(frozen=True)
class FinishOn:
    operations: list[tuple[str, Tensor]]

    def __call__(self, pixels: Tensor) -> Tensor:
        operations = self.operations
        if operations and not pixels.is_cpu:
            # Float32 numbers convert the pixels too: one pass over them. A CPU is faster with two.
            (name, numbers), *operations = operations
            values: Tensor = getattr(torch, name)(pixels, numbers)
        else:
            values = pixels.to(torch.float32, copy=bool(operations))
        for name, numbers in operations:
            getattr(values, f"{name}_")(numbers)
        return values


def can_be_put_off(transform: Any) -> bool:
    """Is this a Normalize, and one that cannot fail on RGB?"""
    if type(transform) is not Normalize:
        return False
    mean, std = _column(transform.mean), _column(transform.std)
    return {mean.size, std.size} <= {1, 3} and bool((std != 0).all())


def is_uint8(images: Any) -> bool:
    return isinstance(images, Tensor) and images.dtype == torch.uint8


def _column(numbers: Any) -> NDArray[np.float32]:
    """One number for each channel."""
    column = np.array(numbers, np.float32)
    return column.reshape(-1, 1, 1) if column.ndim == 1 else column
