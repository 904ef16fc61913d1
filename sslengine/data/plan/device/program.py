"""What is still to be done to a view, in rows of bytes below its pixels.

So whatever moves the tensor moves this too: a collator need not know of it. There are
SLOTS places, each for one operation: the codes, a byte each, then the parameters, 4 bytes each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sslengine.data.plan import ops
from sslengine.errors import DataError

SLOTS = 16
MARK = np.frombuffer(b"\xa5ops", np.uint8)
BYTES = len(MARK) + 5 * SLOTS

# Code 0: nothing. Blur is the last: what counts on from it is how far its box reaches.
OPERATIONS: tuple[type[ops.Op], ...] = (
    ops.Brightness,
    ops.Contrast,
    ops.Saturation,
    ops.Hue,
    ops.Grey,
    ops.Solarize,
    ops.Posterize,
    ops.Invert,
    ops.AutoContrast,
    ops.Equalize,
    ops.Sharpness,
    ops.Blur,
)
CODES = {operation: number for number, operation in enumerate(OPERATIONS, start=1)}

_PARAMETERS: dict[type[ops.Op], Callable[[Any], float]] = {
    ops.Brightness: lambda op: op.factor,
    ops.Contrast: lambda op: op.factor,
    ops.Saturation: lambda op: op.factor,
    # torchvision's conversion to a byte, whose sign it takes off by wrapping around.
    ops.Hue: lambda op: int(op.shift * 255) % 256,
    ops.Grey: lambda _: 0,
    ops.Solarize: lambda op: op.threshold,
    ops.Posterize: lambda op: 256 - (1 << 8 - op.bits),  # the bits that are kept
    ops.Invert: lambda _: 0,
    ops.AutoContrast: lambda _: 0,
    ops.Equalize: lambda _: 0,
    ops.Sharpness: lambda op: op.factor,
    ops.Blur: lambda op: op.radius,
}


class Program(NamedTuple):
    """Of n views: codes, uint8 [n, SLOTS], and parameters, float32 [n, SLOTS]."""

    codes: NDArray[np.uint8]
    parameters: NDArray[np.float32]


def put_below(pixels: Tensor, pending: Sequence[ops.Op]) -> Tensor:
    """uint8 [3, height, width], with rows for the operations, of which there are at most SLOTS."""
    channels, height, width = pixels.shape
    rows = _rows(channels, width)
    whole = np.empty((channels, height + rows, width), np.uint8)
    whole[:, :height] = pixels.numpy()
    below = np.zeros(channels * rows * width, np.uint8)
    below[:BYTES] = _encoded(pending)
    whole[:, height:] = below.reshape(channels, rows, width)
    return torch.from_numpy(whole)


def height_of_pixels(images: Tensor) -> int:
    """Of tensors [..., 3, rows, width] as put_below makes them."""
    return images.shape[-2] - _rows(images.shape[-3], images.shape[-1])


def read_below(images: Tensor) -> Program:
    """The operations below the pixels of tensors [..., 3, rows, width], on the host."""
    below = images[..., height_of_pixels(images) :, :].flatten(0, -4).flatten(1)
    read = below[:, :BYTES].numpy()
    if (read[:, : len(MARK)] != MARK).any():
        raise DataError(
            f"The operations that travel below an image's pixels are missing in a tensor "
            f"{tuple(images.shape)}: config.DATA.AUGMENT_BACKEND=device needs a collator that "
            f"moves tensors as they are."
        )
    codes, parameters = np.split(read[:, len(MARK) :], [SLOTS], axis=1)
    return Program(codes, np.ascontiguousarray(parameters).view(np.float32))


def _rows(channels: int, width: int) -> int:
    return -(-BYTES // (channels * width))


def _encoded(pending: Sequence[ops.Op]) -> NDArray[np.uint8]:
    codes = np.zeros(SLOTS, np.uint8)
    parameters = np.zeros(SLOTS, np.float32)
    for slot, operation in enumerate(pending):
        codes[slot] = CODES[type(operation)]
        parameters[slot] = _PARAMETERS[type(operation)](operation)
    return np.concatenate([MARK, codes, parameters.view(np.uint8)])
