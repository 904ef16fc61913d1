"""Which patches of a view a model sees, for methods that drop the others (MSN, MAE)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from sslengine.data.augment.transform import Sample
from sslengine.data.batch.block_masks import by_size
from sslengine.data.batch.collators import Batch, default_collate, only_moves
from sslengine.data.batch.samplers import Place
from sslengine.data.loading.seeding import generator
from sslengine.errors import DataError
from sslengine.registry import register_collator

NAME = "dropped_patches_collator"
PATCH_SIZE = 16


@register_collator(NAME)
@only_moves("target_views", "random_views", "focal_views")
def dropped_patches_collator(
    batch: Sequence[Sample],
    patch_size: int = PATCH_SIZE,
    dropped: float = 0.15,
    same: bool = False,
) -> Batch:
    """`target_views`, the first view of each sample; `random_views`, the others of its size, one
    after the other for all samples; `focal_views`, the smaller ones likewise, if there are any; and
    `shown`, the numbers of the patches that are not dropped, for each of the random views.

    It draws for the global batch, by seed, epoch and step.

    patch_size: the side of a patch, in pixels; that of the trunk.
    dropped: the share of patches that are dropped from random views.
    same: the same patches in all random views of a step, as in the code of MSN's authors; false:
        others in each.
    """
    large, collated = by_size(batch)
    if len(large) < 2:
        raise DataError(
            f"{NAME} needs two views of the largest size of each image or more, a target and "
            f"others, and got {len(large)}: see num_crops of ImgPilToMultiCrop."
        )
    if patch_size < 1 or not 0 <= dropped < 1:
        raise DataError(
            f"COLLATE_FUNCTION_PARAMS of {NAME}: expected a patch_size of 1 or more and a share "
            f"dropped from 0 to below 1, got {patch_size} and {dropped}."
        )
    views = collated.pop("global_views")[0].unflatten(0, (len(large), -1))
    focal = {"focal_views": collated.pop("local_views")} if "local_views" in collated else {}
    rows, columns = (side // patch_size for side in views.shape[-2:])
    place, patches = Place.of(batch), rows * columns
    draw = generator(b"dropped", *place.stream)
    total = max(place.size, place.first + len(batch))
    drawn = torch.rand(len(large) - 1, 1 if same else total, patches, generator=draw)
    order = drawn.argsort(dim=-1)[..., : max(1, int(patches * (1 - dropped)))].sort(dim=-1).values
    mine = order if same else order[:, place.first : place.first + len(batch)]
    shown = mine.expand(-1, len(batch), -1).flatten(0, 1).contiguous()
    targets, others = views[0].contiguous(), views[1:].flatten(0, 1).contiguous()
    return {**collated, **focal,
            "target_views": [targets], "random_views": [others], "shown": [shown]}  # fmt: skip


@register_collator("patch_noise_collator")
@only_moves("data")
def patch_noise_collator(batch: Sequence[Sample], patch_size: int = PATCH_SIZE) -> Batch:
    """Add `noise`, a random number for each patch of an image: a model sees those with the lowest.

    It draws for the global batch, by seed, epoch and step.

    patch_size: the side of a patch, in pixels; that of the trunk.
    """
    collated, place = default_collate(batch), Place.of(batch)
    rows, columns = (side // patch_size for side in collated["data"][0].shape[-2:])
    draw, last = generator(b"noise", *place.stream), place.first + len(batch)
    drawn = torch.rand(max(place.size, last), rows * columns, generator=draw)
    return {**collated, "noise": [drawn[place.first : last].clone()]}  # these rows alone are sent
