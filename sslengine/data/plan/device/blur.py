"""Pillow's GaussianBlur on a batch, to the bit: three box blurs in each direction.

A box of whole pixels has a part of a pixel at either end, in fixed point with 24 bits, and
every pass rounds to bytes. Outside the image its outermost pixels continue.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

PASSES = 3
ONE = 1 << 24


def boxes(radii: NDArray[np.float32]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """For radii of Gaussians: how far the box reaches in whole pixels, and the weight of each.

    In float32 as in Pillow's C; the weights are whole numbers, less than 2 ** 24.
    """
    single: Any = np.float32
    variance = radii.astype(single) * radii.astype(single) / single(PASSES)
    length = np.sqrt(12.0 * variance.astype(np.float64) + 1.0).astype(single)
    whole = np.floor((length - single(1)) / single(2))
    part = (2 * whole + 1) * (whole * (whole + 1) - single(3) * variance)
    part /= single(6) * (variance - (whole + 1) * (whole + 1))
    reach = whole + part
    weight = np.floor(single(ONE) / (reach * single(2) + single(1)))
    return reach.astype(np.int64), weight.astype(single)


def blur(pixels: Tensor, weight: Tensor, reach: int) -> Tensor:
    """uint8 [n, 3, height, width]; the weights, float32 [n], of boxes that reach equally far."""
    whole = weight.view(-1, 1, 1, 1).int()
    inner = (2 * reach + 1) * whole
    part = (ONE - inner) >> 1
    # Weights may sum to a bit less than one. About zero, sums of products fit into 32 bits.
    half = (ONE >> 1) - 128 * (ONE - inner - 2 * part)
    values = pixels.int().sub_(128)
    for dim in (3, 2):
        for _ in range(PASSES):
            values = _box(values, dim, reach, whole, part).add_(half).bitwise_right_shift_(24)
    return values.add_(128).to(torch.uint8)


def _box(values: Tensor, dim: int, reach: int, whole: Tensor, part: Tensor) -> Tensor:
    size = values.shape[dim]
    edges = [values.narrow(dim, at, 1) for at in (0, size - 1)]
    first, last = (edge.expand(*_with(edge.shape, dim, reach + 1)) for edge in edges)
    wide = torch.cat([first, values, last], dim)
    total = wide.narrow(dim, 1, size)
    for shift in range(2, 2 * reach + 2):
        total = total + wide.narrow(dim, shift, size)
    ends = wide.narrow(dim, 0, size) + wide.narrow(dim, 2 * reach + 2, size)
    return ends.mul_(part).add_(total * whole)


def _with(shape: torch.Size, dim: int, size: int) -> list[int]:
    return [size if number == dim else each for number, each in enumerate(shape)]
