"""Position embeddings of a file for images of another size, resized to the model's grid of patches.

As timm and VISSL do it: the patches' embeddings, a square map, are interpolated bicubically; those
of class tokens stay. Nothing else of a transformer hangs on the size of the image.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

LOG = logging.getLogger("sslengine")
NAME = "trunk.pos_embed"  # 1 x (tokens before the patches + patches) x width


def fit_positions(trunk: nn.Module, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """`given`, with position embeddings of this trunk's shape where they can be made."""
    ours, theirs = getattr(trunk, "pos_embed", None), given.get(NAME)
    grid = getattr(getattr(trunk, "patch_embed", None), "grid_size", None)
    if not isinstance(ours, Tensor) or theirs is None or grid is None:
        return dict(given)
    before = ours.shape[1] - math.prod(grid)
    side = math.isqrt(max(0, theirs.shape[1] - before)) if theirs.ndim == 3 else 0
    of_a_square = side > 0 and theirs.shape == (1, before + side**2, ours.shape[-1])
    if ours.shape == theirs.shape or not of_a_square:
        return dict(given)
    LOG.info("Position embeddings resized from %d x %d patches to %d x %d.", side, side, *grid)
    places = theirs[:, before:].mT.unflatten(2, (side, side)).float()
    places = interpolate(places, tuple(grid), mode="bicubic", antialias=True)
    patches = places.flatten(2).mT.to(theirs.dtype)
    return {**given, NAME: torch.cat([theirs[:, :before], patches], dim=1)}
