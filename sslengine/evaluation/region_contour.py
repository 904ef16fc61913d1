"""How well a region of an image was found, as DAVIS measures it (Perazzi et al. 2016).

J   region: Jaccard's index
F   contour: the harmonic mean of precision and recall of the contours' pixels. One is matched by
    a pixel of the other contour within 0.008 of the image's diagonal, in whole pixels, rounded up
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

BOUND = 0.008


def region(found: Tensor, wanted: Tensor) -> Tensor:
    """N: J of N x H x W booleans; 1 where both are empty."""
    both, either = ((each).sum(dim=(1, 2)) for each in (found & wanted, found | wanted))
    return torch.where(either > 0, both.double() / either.clamp(min=1), 1.0)


def contour(found: Tensor, wanted: Tensor) -> Tensor:
    """N: F of N x H x W booleans; 1 where neither has a contour, 0 where one has none."""
    radius = math.ceil(BOUND * math.hypot(*found.shape[1:]))
    own, other = _contours(found), _contours(wanted)
    precision, recall = _share(own, _grown(other, radius)), _share(other, _grown(own, radius))
    return 2 * precision * recall / (precision + recall).clamp(min=1e-12)


def _contours(regions: Tensor) -> Tensor:
    """Pixels that differ from the one to the right, below, or right below; outside continues."""
    padded = F.pad(regions[:, None].float(), (0, 1, 0, 1), mode="replicate")[:, 0] > 0
    here = padded[:, :-1, :-1]
    return (
        (here ^ padded[:, :-1, 1:]) | (here ^ padded[:, 1:, :-1]) | (here ^ padded[:, 1:, 1:])
    )  # fmt: skip


def _grown(contours: Tensor, radius: int) -> Tensor:
    """By a disk."""
    steps = torch.arange(-radius, radius + 1, device=contours.device)
    disk = (steps[:, None] ** 2 + steps**2 <= radius**2).float()
    return F.conv2d(contours[:, None].float(), disk[None, None], padding=radius)[:, 0] > 0.5


def _share(contours: Tensor, matching: Tensor) -> Tensor:
    """Of the pixels that match; 1 of none."""
    count = contours.sum(dim=(1, 2))
    matched = (contours & matching).sum(dim=(1, 2)).double()
    return torch.where(count > 0, matched / count.clamp(min=1), 1.0)
