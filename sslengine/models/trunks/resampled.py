"""Learned positions, a map of patches, for an image with another number of patches.

As timm does it, bicubically and smoothed. Its gradient has no deterministic kernel on a GPU: where
torch is to be deterministic (config.REPRODUCIBILITY.DETERMINISTIC), the same is a product of
matrices.
"""

from __future__ import annotations

import torch
from timm.layers.pos_embed import resample_abs_pos_embed
from torch import Tensor
from torch.nn.functional import interpolate

from sslengine.precision import widest

Grid = tuple[int, int]  # rows, columns


def resampled(positions: Tensor, old: Grid, new: Grid, before: int = 0) -> Tensor:
    """1 x (before + patches) x D. before: tokens ahead of the patches, which are kept."""
    if not torch.are_deterministic_algorithms_enabled() or old == new:
        made: Tensor = resample_abs_pos_embed(positions, [*new], [*old], num_prefix_tokens=before)
        return made
    # Not in float32, which a GPU may round to TF32, and autocast to bfloat16.
    wide = positions[0, before:].to(widest(positions.device)).unflatten(0, old)
    rows, columns = (_matrix(*sides, wide) for sides in zip(old, new, strict=True))
    patches = torch.einsum("ih,hwd,jw->ijd", rows, wide, columns).flatten(0, 1)
    return torch.cat([positions[:, :before], patches[None].to(positions.dtype)], dim=1)


def _matrix(old: int, new: int, like: Tensor) -> Tensor:
    """new x old: what each of `new` places takes of each of `old` ones. like: type and device."""
    each_alone = torch.eye(old, dtype=like.dtype, device=like.device)[None, None]
    return interpolate(each_alone, (new, old), mode="bicubic", antialias=True)[0, 0]
