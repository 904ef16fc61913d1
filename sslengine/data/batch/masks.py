"""Collators that choose which patches of an image a model sees, and which it predicts.

    ibot_multicrop_masking_collator  blocks are hidden, as MaskedImageModeling drew them
    spread_masks_collator            blocks are hidden, of shares that are spread evenly (DINOv2)
    dropped_patches_collator         random patches are dropped from some of the views (MSN)
    patch_noise_collator             a random number for each patch, to choose by (MAE)
    multi_block_collator             a large block, less several that are predicted (I-JEPA)
    visible_block_collator           a block; some of the other patches are predicted (CAPI)

All but the first draw for the global batch, by seed, epoch and step, and each rank takes its rows:
any number of ranks and workers has the same.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from sslengine.data.augment.masking import block_mask, no_room
from sslengine.data.augment.transform import Sample
from sslengine.data.batch.collators import (
    Batch,
    column,
    default_collate,
    expect,
    only_moves,
    stacked,
    view_by_view,
)
from sslengine.data.batch.samplers import Place
from sslengine.data.seeding import generator
from sslengine.errors import DataError
from sslengine.registry import register_collator

PATCH_SIZE = 16
SPREAD, DROPPED = "spread_masks_collator", "dropped_patches_collator"
MULTI_BLOCK, VISIBLE_BLOCK = "multi_block_collator", "visible_block_collator"

Block = tuple[int, int]
Range = Sequence[float]

# So often a context is drawn again before it may overlap one more of the targets.
ATTEMPTS = 20


# ---- several sizes of views: `global_views`, a list of the crops of the largest size, and
# `local_views`, of the others, if there are any


@register_collator("ibot_multicrop_masking_collator")
@only_moves("global_views", "local_views")
def ibot_multicrop_masking_collator(batch: Sequence[Sample]) -> Batch:
    """Each global view has the mask that the transform MaskedImageModeling drew for it: `mask`, of
    rows x columns of patches, true where hidden; `patches_at`, the numbers of the hidden patches,
    view * (rows * columns) + patch."""
    if "mask" not in batch[0]:
        raise DataError(
            "ibot_multicrop_masking_collator found no masks: put MaskedImageModeling among the "
            "TRANSFORMS, after ToTensor."
        )
    large, collated = _split_by_size(batch)
    by_view = list(zip(*column(batch, "mask")))
    masks = [mask for number in large for mask in by_view[number]]
    _expect_room(collated, masks[0].shape, "patch_size of MaskedImageModeling")
    return {**collated, **_stack_masks(masks)}


@register_collator(SPREAD)
@only_moves("global_views", "local_views", "gram_views")
def spread_masks_collator(
    batch: Sequence[Sample],
    patch_size: int = PATCH_SIZE,
    masked_views: float = 0.5,
    shares: Range = (0.1, 0.5),
    smallest_block: int = 4,
    largest_block: float = 0.5,
    aspect_ratios: Range = (0.3, 1 / 0.3),
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
    low, high = shares
    what = f"{SPREAD}: shares in order and masked_views from 0 to 1, got {shares}, {masked_views}"
    expect(0 <= low <= high <= 1 and 0 <= masked_views <= 1, what)
    aspects = aspect_ratios[0], aspect_ratios[1]
    large, collated = _split_by_size(batch)
    if resized_to:
        collated["gram_views"] = collated["global_views"]
        (views,) = collated["gram_views"]
        most = views[0].shape[-1]
        expect(
            0 < resized_to <= most,
            f"{SPREAD}: resized_to: expected up to {most}, the side of the global views, got "
            f"{resized_to}.",
        )
        side = (resized_to, resized_to)
        smaller = [F.interpolate(each, side, mode="bicubic", antialias=True) for each in views]
        collated["global_views"] = [smaller]
    rows, columns = _grid(collated["global_views"][0][0], patch_size)
    if masked_views and high:
        _expect_room(collated, (rows, columns), f"{SPREAD}.patch_size")
    place = Place.find(batch)
    views = len(large) * place.size
    order = torch.randperm(views, generator=generator(b"masks", *place.stream))
    bounds = np.linspace(low, high, int(views * masked_views) + 1)
    masks = []
    for view in range(len(large)):
        for number in range(place.first, place.first + len(batch)):
            slot = view * place.size + number
            draw, mine = random.Random(repr((*place.stream, slot))), int(order[slot])
            masked = mine < len(bounds) - 1
            share = draw.uniform(bounds[mine], bounds[mine + 1]) if masked else 0.0
            wanted = int(rows * columns * share)
            masks.append(block_mask(
                rows, columns, wanted, aspects,
                min(smallest_block, wanted), largest_block * rows * columns, draw,
            ))  # fmt: skip
    return {**collated, **_stack_masks([torch.from_numpy(mask) for mask in masks])}


@register_collator(DROPPED)
@only_moves("target_views", "random_views", "focal_views")
def dropped_patches_collator(
    batch: Sequence[Sample],
    patch_size: int = PATCH_SIZE,
    dropped: float = 0.15,
    same: bool = False,
) -> Batch:
    """`target_views`, the first view of each sample; `random_views`, a list of the others of its
    size; `focal_views`, of the smaller ones, if there are any; and `shown`, the numbers of the
    patches that are not dropped, for each of the random views.

    patch_size: the side of a patch, in pixels; that of the trunk.
    dropped: the share of patches that are dropped from random views.
    same: the same patches in all random views of a step, as in the code of MSN's authors; false:
        others in each.
    """
    large, collated = _split_by_size(batch)
    expect(
        len(large) >= 2,
        f"{DROPPED} needs two views of the largest size, and got {len(large)}.",
    )
    expect(0 <= dropped < 1, f"{DROPPED}: a share dropped from 0 to below 1, got {dropped}.")
    ((target, *others),) = collated.pop("global_views")
    focal = {"focal_views": collated.pop("local_views")} if "local_views" in collated else {}
    patches = math.prod(_grid(target, patch_size))
    draw, total, mine = _share_of_rank(b"dropped", batch)
    drawn = torch.rand(len(large) - 1, 1 if same else total, patches, generator=draw)
    order = drawn.argsort(dim=-1)[..., : max(1, int(patches * (1 - dropped)))].sort(dim=-1).values
    own = order if same else order[:, mine]
    shown = own.expand(-1, len(batch), -1).flatten(0, 1).contiguous()
    return {**collated, **focal,
            "target_views": [target], "random_views": [others], "shown": [shown]}  # fmt: skip


def _split_by_size(batch: Sequence[Sample]) -> tuple[list[int], Batch]:
    """Return the numbers of the views of the largest size, and all of the batch but masks."""
    views = list(zip(*column(batch, "data")))
    sides = [max(crops[0].shape[-2:]) for crops in views]
    large = [number for number, side in enumerate(sides) if side == max(sides)]
    small = [number for number, side in enumerate(sides) if side < max(sides)]
    collated: Batch = {"global_views": [[stacked("data", views[number]) for number in large]]}
    if small:
        collated["local_views"] = [[stacked("data", views[number]) for number in small]]
    rest = {key: [view_by_view(batch, key)] for key in batch[0] if key not in ("data", "mask")}
    return large, {**collated, **rest}


def _expect_room(collated: Batch, grid: Sequence[int], key: str) -> None:
    why = no_room("global views", collated["global_views"][0][0], grid, key)
    expect(not why, why)


def _stack_masks(of_views: Sequence[Tensor]) -> Batch:
    mask = stacked("mask", of_views)
    return {"mask": [mask], "patches_at": [mask.flatten().nonzero().flatten()]}


# ---- one view of each image: indices of patches, row by row


@register_collator("patch_noise_collator")
@only_moves("data")
def patch_noise_collator(batch: Sequence[Sample], patch_size: int = PATCH_SIZE) -> Batch:
    """Add `noise`, a random number for each patch of an image: a model sees those with the lowest.

    patch_size: the side of a patch, in pixels; that of the trunk.
    """
    collated = default_collate(batch)
    patches = math.prod(_grid(collated["data"][0], patch_size))
    draw, total, mine = _share_of_rank(b"noise", batch)
    drawn = torch.rand(total, patches, generator=draw)
    return {**collated, "noise": [drawn[mine].clone()]}  # these rows alone are sent


@register_collator(MULTI_BLOCK)
@only_moves("data")
def multi_block_collator(
    batch: Sequence[Sample],
    patch_size: int = PATCH_SIZE,
    targets: int = 4,
    target_scale: Range = (0.15, 0.2),
    target_aspect: Range = (0.75, 1.5),
    context_scale: Range = (0.85, 1.0),
    min_keep: int = 10,
    places: Literal["code", "paper"] = "code",
) -> Batch:
    """`shown`, B x K, the patches of each image's context, and `target_blocks`, B x targets x L,
    those of its targets: indices of patches, row by row.

    A step has one size of target blocks and one of context blocks; their places are drawn for each
    image (Assran et al., 2023). Contexts are cut to the shortest of the step, from their end.

    The authors' code differs from their paper: one random number gives a target's area and its
    aspect ratio, no block reaches the last row or the last column, and each GPU cuts to its
    shortest context. `places` chooses the first two; the third would depend on the ranks.

    patch_size: the side of a patch, in pixels; that of the trunk.
    targets: target blocks of an image.
    target_scale: the least and greatest share of the patches in a target block.
    target_aspect: the least and greatest height of a target block by its width.
    context_scale: the least and greatest share of the patches in the context, before the targets
        are taken out of it.
    min_keep: a context has more patches than this; it is drawn again, and may in the end overlap
        targets.
    places: code: as the authors' code draws blocks; paper: area and aspect ratio apart, and any
        place in the image.
    """
    collated, (rows, columns) = _collate_one_view(MULTI_BLOCK, batch, patch_size)
    grid = Grid(rows, columns, int(places == "code"))
    draw, total, mine = _share_of_rank(b"blocks", batch)
    target = grid.size(draw, target_scale, target_aspect)
    context = grid.size(draw, context_scale, (1.0, 1.0))
    expect(
        math.prod(context) > min_keep,
        f"{MULTI_BLOCK}: min_keep, {min_keep}: a context has {math.prod(context)} patches.",
    )
    hidden = grid.blocks(draw, target, total * targets).unflatten(0, (total, targets))
    seen = _draw_contexts(grid, draw, context, hidden, min_keep)
    shortest = int(seen.sum((1, 2)).min())
    shown, predicted = _first(seen[mine], shortest), _first(hidden[mine], math.prod(target))
    return {**collated, "shown": [shown], "target_blocks": [predicted]}


class Grid(NamedTuple):
    rows: int
    columns: int
    margin: int  # blocks stay away from the last so many rows and columns

    def size(self, draw: Generator, scale: Range, aspect: Range) -> Block:
        """Draw a size; with a margin one number gives area and aspect ratio."""
        share = _random(draw)
        ratio = _interpolate(aspect, share if self.margin else _random(draw))
        area = int(self.rows * self.columns * _interpolate(scale, share))
        rows, columns = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        most = (self.rows - self.margin, self.columns - self.margin)
        return max(1, min(rows, most[0])), max(1, min(columns, most[1]))

    def blocks(self, draw: Generator, size: Block, count: int) -> Tensor:
        """Return count x rows x columns: true in a block of this size, each at another place."""
        along = []
        for side, length in zip((self.rows, self.columns), size):
            ends = side - length - self.margin + 1
            start = torch.randint(ends, (count, 1), generator=draw)
            patch = torch.arange(side)
            along.append((patch >= start) & (patch < start + length))
        return along[0].unsqueeze(2) & along[1].unsqueeze(1)


def _draw_contexts(grid: Grid, draw: Generator, size: Block, hidden: Tensor, keep: int) -> Tensor:
    """Return count x rows x columns: true in the context of each image."""
    seen = grid.blocks(draw, size, len(hidden)) & ~hidden.any(1)
    for attempt in itertools.count(1):
        few = seen.sum((1, 2)) <= keep
        if not few.any():
            break
        avoided = max(0, hidden.shape[1] - attempt // ATTEMPTS)
        again = grid.blocks(draw, size, int(few.sum()))
        seen[few] = again & ~hidden[few, :avoided].any(1)
    return seen


def _first(masks: Tensor, count: int) -> Tensor:
    """Return the numbers of the first so many true patches of each mask."""
    hidden_last = masks.flatten(-2).logical_not().byte().argsort(dim=-1, stable=True)
    return hidden_last[..., :count].contiguous()


@register_collator(VISIBLE_BLOCK)
@only_moves("data")
def visible_block_collator(
    batch: Sequence[Sample],
    patch_size: int = PATCH_SIZE,
    hidden: float = 0.65,
    predicted: float = 0.05,
    aspect_ratios: Range = (0.5, 2.0),
    masks: Literal["outside", "block", "random"] = "outside",
    roll: bool = True,
) -> Batch:
    """`shown`, B x K, the patches that the model sees, and `predicted`, B x P, some of the others:
    indices of patches, row by row.

    For each image a block of the patches, with a random aspect ratio and place, is what the model
    sees; it may be rolled over the borders of the image, so that it is in several parts. Of the
    other patches a random part is predicted (Darcet et al., 2025).

    patch_size: the side of a patch, in pixels; that of the trunk.
    hidden: the share of the patches that the model does not see.
    predicted: the share of these that is predicted, at random.
    aspect_ratios: the least and greatest height of a block by its width.
    masks: outside: what is outside a block is hidden; block: what is inside; random: any patches.
    roll: blocks are moved over the borders of the image, to the other side.
    """
    collated, (rows, columns) = _collate_one_view(VISIBLE_BLOCK, batch, patch_size)
    patches = rows * columns
    away = int(patches * hidden)
    asked = int(away * predicted)
    expect(
        0 < away < patches and 0 < asked <= away,
        f"{VISIBLE_BLOCK}: of {patches} patches of an image {away} are hidden, of which {asked} "
        f"are predicted. Some must be shown and some predicted.",
    )
    draw, total, mine = _share_of_rank(b"visible", batch)
    size = away if masks == "block" else patches - away
    if masks == "random":
        inside = torch.rand(total, patches, generator=draw).argsort(dim=1) < size
    else:
        drawn = [_draw_block(draw, rows, columns, size, aspect_ratios, roll) for _ in range(total)]
        inside = torch.stack(drawn).flatten(1)
    seen = ~inside if masks == "block" else inside
    # Hidden patches in random order come first, then those that are shown.
    order = (torch.rand(seen.shape, generator=draw) + seen).argsort(dim=1)
    shown = order[mine, away:].sort(dim=1).values
    return {**collated, "shown": [shown], "predicted": [order[mine, :asked].contiguous()]}


def _draw_block(
    draw: Generator, rows: int, columns: int, size: int, aspects: Range, roll: bool
) -> Tensor:
    """Return rows x columns: true in so many patches of a block, of which the last row may be
    cut."""
    low = max(math.log(aspects[0]), math.log(size / columns**2))
    high = min(math.log(aspects[1]), math.log(rows**2 / size))
    ratio = math.exp(low + _random(draw) * (high - low))
    height = min(rows, math.ceil(math.sqrt(size * ratio)))
    width = min(columns, max(math.ceil(math.sqrt(size / ratio)), math.ceil(size / height)))
    top = int(torch.randint(rows - height + 1, (), generator=draw))
    left = int(torch.randint(columns - width + 1, (), generator=draw))
    block = torch.zeros(rows, columns, dtype=torch.bool)
    block[top : top + height, left : left + width] = True
    block &= (block.flatten().cumsum(0) <= size).view(rows, columns)
    if not roll:
        return block
    shifts = [int(torch.randint(side, (), generator=draw)) for side in (rows, columns)]
    return block.roll(shifts, (0, 1))


# ---- what both need


def _collate_one_view(name: str, batch: Sequence[Sample], patch_size: int) -> tuple[Batch, Block]:
    collated = default_collate(batch)
    views = len(collated["data"])
    expect(views == 1, f"{name} takes one view of each image, and got {views}.")
    return collated, _grid(collated["data"][0], patch_size)


def _grid(images: Tensor, patch_size: int) -> Block:
    height, width = images.shape[-2:]
    return height // patch_size, width // patch_size


def _share_of_rank(purpose: bytes, batch: Sequence[Sample]) -> tuple[Generator, int, slice]:
    """Return the stream of the global batch, its number of rows, and which of them are here."""
    place = Place.find(batch)
    end = place.first + len(batch)
    return generator(purpose, *place.stream), max(place.size, end), slice(place.first, end)


def _random(draw: Generator) -> float:
    return float(torch.rand((), generator=draw))


def _interpolate(ends: Range, share: float) -> float:
    low, high = ends
    return low + share * (high - low)
