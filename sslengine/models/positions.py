"""Resize position embeddings and biases of a weight file to the model's image size.

As in timm and VISSL, the embeddings of patches, a square map, are interpolated bicubically; those
of class tokens are not changed. Relative position biases (BEiT, Swin), a square map of distances,
are interpolated too. No other weight of a transformer depends on the size of the image.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

LOG = logging.getLogger("sslengine")
# 1 x (tokens before the patches + patches) x width: here and in timm, and in torchvision. For each
# the patches in a column and in a row.
GRIDS: Mapping[str, Callable[[Any], Sequence[int] | None]] = {
    "pos_embed": lambda trunk: getattr(getattr(trunk, "patch_embed", None), "grid_size", None),
    "encoder.pos_embedding": lambda trunk: (trunk.image_size // trunk.patch_size,) * 2,
}
# (vertical distances * horizontal distances + entries of the class token) x heads
BIAS = ".relative_position_bias_table"


def fit_positions(trunk: nn.Module, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return `given` with embeddings and biases resized to the trunk's shapes where possible."""
    return _fit_biases(trunk, _fit_embeddings(trunk, given))


def _fit_embeddings(trunk: nn.Module, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
    tensors = {**dict(trunk.named_parameters()), **dict(trunk.named_buffers())}
    name = next((each for each in GRIDS if each in tensors and f"trunk.{each}" in given), "")
    grid = GRIDS[name](trunk) if name else None
    if grid is None:
        return dict(given)
    ours, theirs = tensors[name], given[f"trunk.{name}"]
    before = ours.shape[1] - math.prod(grid)
    side = math.isqrt(max(0, theirs.shape[1] - before)) if theirs.ndim == 3 else 0
    of_a_square = side > 0 and theirs.shape == (1, before + side**2, ours.shape[-1])
    if ours.shape == theirs.shape or not of_a_square:
        return dict(given)
    LOG.info("Position embeddings resized from %d x %d patches to %d x %d.", side, side, *grid)
    patches = _resized(theirs[0, before:], side, grid)
    return {**given, f"trunk.{name}": torch.cat([theirs[:, :before], patches[None]], dim=1)}


def _fit_biases(trunk: nn.Module, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
    fitted, sizes = dict(given), set()
    for name, ours in trunk.named_parameters():
        theirs = given.get(f"trunk.{name}")
        if not name.endswith(BIAS) or theirs is None or ours.shape == theirs.shape:
            continue
        window: Any = trunk.get_submodule(name.removesuffix(BIAS)).window_size
        distances = [2 * side - 1 for side in window]
        with_class = len(ours) - math.prod(distances)
        side = math.isqrt(max(0, len(theirs) - with_class))
        if side % 2 and theirs.shape == (side**2 + with_class, *ours.shape[1:]):
            between = _resized(theirs[: side**2], side, distances)
            fitted[f"trunk.{name}"] = torch.cat([between, theirs[side**2 :]])
            sizes.add((side // 2 + 1, *window))
    for size in sorted(sizes):
        LOG.info("Relative positions resized from %d patches a side to %d x %d.", *size)
    return fitted


def _resized(places: Tensor, side: int, size: Sequence[int]) -> Tensor:
    """Resize (side * side) x width, row by row, to (size[0] * size[1]) x width."""
    square = places.mT.unflatten(1, (side, side))[None].float()
    fitted = interpolate(square, tuple(size), mode="bicubic", antialias=True)
    return fitted[0].flatten(1).mT.to(places.dtype)
