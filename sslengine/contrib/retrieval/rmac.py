"""R-MAC: maxima of overlapping square regions of a feature map, whitened and added.

Tolias, Sicre, Jegou, Particular object retrieval with integral max-pooling of CNN activations,
2016. At level l the squares have the side 2 w / (l + 1), with w the smaller side of the map, and l
of them fit along it; along the larger side there are as many more as make two neighbours overlap
by 40 %, nearly.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from sslengine.evaluate.retrieval import Whitening

OVERLAP = 0.4
MORE = 6  # regions along the larger side, at most


def regions(height: int, width: int, levels: int) -> list[tuple[int, int, int]]:
    """(top, left, side) of each region."""
    small, large = min(height, width), max(height, width)
    more = 0
    if large > small:
        overlaps = [1 - (large - small) / (count * small) for count in range(1, MORE + 1)]
        more = 1 + min(range(MORE), key=lambda place: abs(overlaps[place] - OVERLAP))
    found = []
    for level in range(1, levels + 1):
        side = 2 * small // (level + 1)
        if side == 0:
            continue
        tops = _starts(height, side, level + more * (height > width))
        lefts = _starts(width, side, level + more * (width > height))
        found += [(top, left, side) for top in tops for left in lefts]
    return found


def _starts(length: int, side: int, count: int) -> list[int]:
    """Return where `count` regions start that are spread evenly, within the map."""
    step = (length - side) / (count - 1) if count > 1 else 0.0
    shift = side // 2 - 1  # of the centres, whose places are rounded down
    return [min(math.floor(shift + step * each) - shift, length - side) for each in range(count)]


def most_regions(levels: int) -> int:
    return sum(level * (level + MORE) for level in range(1, levels + 1))


def region_maxima(maps: Tensor, levels: int, unit: bool = True) -> Tensor:
    """Return of maps (B, C, H, W) the maxima (B, regions, C), scaled to unit length."""
    height, width = maps.shape[2:]
    places = regions(height, width, levels)
    maxima = [
        maps[:, :, top : top + side, left : left + side].amax(dim=(2, 3))
        for top, left, side in places
    ]
    found = torch.stack(maxima, dim=1)
    return F.normalize(found, dim=2) if unit else found


def rmac(maps: Tensor, levels: int, whiten: Whitening, unit: bool = True) -> Tensor:
    """(B, components)."""
    maxima = region_maxima(maps, levels, unit)
    white: Tensor = whiten(maxima.flatten(0, 1)).reshape(*maxima.shape[:2], -1)
    if not unit:
        return white.sum(dim=1)
    return F.normalize(F.normalize(white, dim=2).sum(dim=1), dim=1)
