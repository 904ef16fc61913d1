"""What is still to be done to a view, in rows of bytes below its pixels.

So what moves the tensor moves this too, and collators need not handle it. There are
SLOTS places, each for one operation: the codes, a byte each, then the parameters, 4 bytes each.
Then come the numbers of a cut, 4 bytes each, for a back-end whose device makes the pixels as well.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sslengine.data.augment.operation import Operation, has_kernel
from sslengine.data.augment.operations import OPERATIONS
from sslengine.errors import DataError

SLOTS = 16
MARK = b"\xa5ops"

# Those that have a kernel. Code 0: nothing.
KERNELS = tuple(each for each in OPERATIONS if has_kernel(each))
CODES: dict[type[Operation], int] = {
    operation: number for number, operation in enumerate(KERNELS, start=1)
}


class Cut(NamedTuple):
    """What a view is of an encoded file: numbers, in the order in which they travel."""

    file: int  # its number; 0: the pixels are here
    length: int  # of the file, where this view brings it; else 0
    top: int
    left: int
    height: int
    width: int
    flip: int
    cubic: int
    pixels: int  # of the whole image


NUMBERS = len(Cut._fields)
NO_CUT = Cut(*[0] * NUMBERS)
BYTES = len(MARK) + 5 * SLOTS + 4 * NUMBERS


class Program(NamedTuple):
    """Of n views: codes, uint8 [n, SLOTS], parameters, float32 [n, SLOTS], cuts, int32 [n, 9]."""

    codes: NDArray[np.uint8]
    parameters: NDArray[np.float32]
    cuts: NDArray[np.int32]


def put_below(pixels: Tensor, pending: Sequence[Operation]) -> Tensor:
    """A copy of uint8 [3, height, width] with rows for the operations, at most SLOTS."""
    return torch.cat([pixels, torch.tensor(rows_below(pixels.shape[-1], pending))], dim=1)


def rows_below(width: int, pending: Sequence[Operation], cut: Cut = NO_CUT) -> NDArray[np.uint8]:
    """These rows alone, [3, rows, width]: as many for any operations."""
    rows = _rows(3, width)
    encoded = _encoded(pending, cut).ljust(3 * rows * width, b"\0")
    return np.frombuffer(encoded, np.uint8).reshape(3, rows, width)


def height_of_pixels(images: Tensor) -> int:
    """Of tensors [..., 3, rows, width] with operations below them."""
    return images.shape[-2] - _rows(images.shape[-3], images.shape[-1])


def read_below(images: Tensor) -> Program:
    """The operations below the pixels of tensors [..., 3, rows, width], on the host."""
    below = images[..., height_of_pixels(images) :, :].flatten(0, -4).flatten(1)
    read = below[:, :BYTES].numpy()
    if (read[:, : len(MARK)] != np.frombuffer(MARK, np.uint8)).any():
        raise DataError(
            f"The operations that travel below an image's pixels are missing in a tensor "
            f"{tuple(images.shape)}: config.DATA.AUGMENT_BACKEND=device needs a collator that "
            f"moves tensors unchanged."
        )
    codes, parameters, cuts = np.split(read[:, len(MARK) :], [SLOTS, 5 * SLOTS], axis=1)
    numbers = np.ascontiguousarray(parameters).view(np.float32)
    return Program(codes, numbers, np.ascontiguousarray(cuts).view(np.int32))


def _rows(channels: int, width: int) -> int:
    return -(-BYTES // (channels * width))


def _encoded(pending: Sequence[Operation], cut: Cut) -> bytes:
    codes, parameters = bytearray(SLOTS), array("f", bytes(4 * SLOTS))
    for slot, operation in enumerate(pending):
        codes[slot], parameters[slot] = CODES[type(operation)], operation.parameter
    return b"".join((MARK, codes, parameters, array("i", cut)))
