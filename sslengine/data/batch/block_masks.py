"""Collators that hide blocks of patches, for methods that predict them (iBOT, DINOv2).

Both make, besides `global_views` (the crops of the largest size, one after the other for all
samples) and `local_views` (the others likewise, if there are any):

    mask         for each global view rows x columns of patches, true where hidden
    patches_at   the numbers of the hidden patches, view * (rows * columns) + patch
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from sslengine.data.augment.masking import (
    block_mask,
    no_room,
)
from sslengine.data.augment.transform import Sample
from sslengine.data.batch.collators import Batch, column, only_moves, stacked, view_by_view
from sslengine.data.batch.samplers import Place
from sslengine.data.loading.seeding import generator
from sslengine.data.ranges import in_order
from sslengine.errors import DataError
from sslengine.registry import register_collator

HERE = "COLLATE_FUNCTION_PARAMS of spread_masks_collator"


@register_collator("ibot_multicrop_masking_collator")
@only_moves("global_views", "local_views")
def ibot_multicrop_masking_collator(batch: Sequence[Sample]) -> Batch:
    """Each global view has the mask that the transform MaskedImageModeling drew for it."""
    if "mask" not in batch[0]:
        raise DataError(
            "ibot_multicrop_masking_collator found no masks: put MaskedImageModeling among the "
            "TRANSFORMS, after ToTensor."
        )
    large, collated = by_size(batch)
    by_view = list(zip(*column(batch, "mask")))
    masks = [mask for number in large for mask in by_view[number]]
    _expect_room(collated, masks[0].shape, "patch_size of MaskedImageModeling")
    return {**collated, **_masks(masks)}


@register_collator("spread_masks_collator")
@only_moves("global_views", "local_views", "gram_views")
def spread_masks_collator(
    batch: Sequence[Sample],
    patch_size: int = 16,
    masked_views: float = 0.5,
    shares: Sequence[float] = (0.1, 0.5),
    smallest_block: int = 4,
    largest_block: float = 0.5,
    aspect_ratios: Sequence[float] = (0.3, 1 / 0.3),
    resized_to: int = 0,
) -> Batch:
    """A part of the global views of all ranks is masked, with shares spread evenly, as in DINOv2.

    patch_size: the side of a patch, in pixels.
    masked_views: the part of the global views that has masks; the others are not masked.
    shares: the least and greatest share of hidden patches. The range is divided into as many
        parts as views are masked, and each of them draws its share from another part.
    smallest_block: patches of the smallest block; of a mask with fewer patches it is all.
    largest_block: the largest block, as a share of the patches.
    aspect_ratios: the least and greatest height of a block by its width.
    resized_to: global views are resized to this side; as they were they are the input `gram_views`
        (DINOv3). 0: they are not.
    """
    if min(patch_size, smallest_block) < 1 or not (0 <= masked_views <= 1 and largest_block > 0):
        raise DataError(
            f"{HERE}: expected a patch_size and a smallest_block of 1 or more, masked_views from 0 "
            f"to 1 and a largest_block above 0, got {patch_size}, {smallest_block}, {masked_views} "
            f"and {largest_block}."
        )
    try:
        low, high = in_order("shares", shares, most=1, with_zero=True)
        aspects = in_order("aspect_ratios", aspect_ratios)
    except ValueError as error:
        raise DataError(f"{HERE}: {error}") from error
    large, collated = by_size(batch)
    if resized_to:
        collated["gram_views"] = collated["global_views"]
        collated["global_views"] = [_resized(each, resized_to) for each in collated["gram_views"]]
    place = Place.of(batch)
    rows, columns = (side // patch_size for side in collated["global_views"][0].shape[-2:])
    if masked_views and high:
        _expect_room(collated, (rows, columns), f"{HERE}.patch_size")
    views = len(large) * place.size
    order = torch.randperm(views, generator=generator(b"masks", *place.stream))
    bounds = np.linspace(low, high, int(views * masked_views) + 1)
    masks = []
    for view in range(len(large)):
        for number in range(place.first, place.first + len(batch)):
            slot, own = view * place.size + number, int(order[view * place.size + number])
            draw = random.Random(repr((*place.stream, slot)))
            masked = own < len(bounds) - 1
            share = draw.uniform(bounds[own], bounds[own + 1]) if masked else 0.0
            wanted = int(rows * columns * share)
            masks.append(block_mask(
                rows, columns, wanted, aspects,
                min(smallest_block, wanted), largest_block * rows * columns, draw,
            ))  # fmt: skip
    return {**collated, **_masks([torch.from_numpy(mask) for mask in masks])}


def by_size(batch: Sequence[Sample]) -> tuple[list[int], Batch]:
    """(the numbers of the views of the largest size, all of the batch but masks)."""
    views = list(zip(*column(batch, "data")))
    sides = [max(crops[0].shape[-2:]) for crops in views]
    large = [number for number, side in enumerate(sides) if side == max(sides)]
    small = [number for number, side in enumerate(sides) if side < max(sides)]
    collated: Batch = {
        "global_views": [stacked("data", [crop for number in large for crop in views[number]])]
    }
    if small:
        local_views = [crop for number in small for crop in views[number]]
        collated["local_views"] = [stacked("data", local_views)]
    rest = {key: [view_by_view(batch, key)] for key in batch[0] if key not in ("data", "mask")}
    return large, {**collated, **rest}


def _resized(views: Tensor, side: int) -> Tensor:
    if not 0 < side <= min(views.shape[-2:]):
        raise DataError(
            f"{HERE}.resized_to: expected up to {min(views.shape[-2:])}, the side of the global "
            f"views, got {side}."
        )
    return F.interpolate(views, (side, side), mode="bicubic", antialias=True)


def _expect_room(collated: Batch, grid: Sequence[int], key: str) -> None:
    if why := no_room("global views", collated["global_views"][0], grid, key):
        raise DataError(why)


def _masks(of_views: Sequence[Tensor]) -> Batch:
    mask = stacked("mask", of_views)
    return {"mask": [mask], "patches_at": [mask.flatten().nonzero().flatten()]}
