"""Images and histograms as metrics: small, on the device until they are read."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sslengine.precision import widest

Image = NDArray[np.uint8]  # height, width, and 3 for colours


class Histogram(NamedTuple):
    """Equal bins from `low` to `high`; what is not finite is in none of them."""

    counts: list[int]
    low: float
    high: float
    sum: float
    sum_of_squares: float

    @property
    def edges(self) -> list[float]:
        """Return the borders of the bins, one more than there are bins."""
        return [float(edge) for edge in np.linspace(self.low, self.high, len(self.counts) + 1)]


def count(tensor: Tensor, bins: int) -> Tensor:
    """Count where the tensor is, without waiting, for `read_histogram`."""
    values = tensor.detach().flatten().float()
    finite = values.isfinite()
    low = torch.where(finite, values, torch.inf).amin()
    high = torch.where(finite, values, -torch.inf).amax()
    values = torch.where(finite, values, low)
    place = (values - low) / (high - low).clamp_min(torch.finfo(values.dtype).tiny)
    index = (place * bins).clamp(0, bins - 1).nan_to_num().long()
    counts = torch.zeros(bins, dtype=torch.long, device=values.device)
    counts.scatter_add_(0, index, finite.long())
    wide = widest(values.device)
    values = torch.where(finite, values, 0.0).to(wide)
    numbers = torch.stack([low.to(wide), high.to(wide), values.sum(), values.square().sum()])
    return torch.cat([numbers, counts.to(wide)])


def read_histogram(counted: Tensor) -> Histogram:
    """Bring what `count` returned to the host. Waits for the device."""
    low, high, total, squares, *counts = counted.tolist()
    return Histogram([*map(int, counts)], low, high, total, squares)


def make_image(given: Tensor) -> Image:
    """Make an image of 8 bits, colours last. Waits for the device."""
    if given.is_floating_point():
        given = given.float().nan_to_num().clamp(0, 1).mul(255).round().to(torch.uint8)
    if given.ndim == 3 and given.shape[0] in (1, 3):
        given = given.permute(1, 2, 0)
    if given.ndim == 3 and given.shape[-1] == 1:
        given = given.squeeze(-1)
    array: Image = given.cpu().contiguous().numpy()
    return array
