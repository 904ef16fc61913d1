"""Which patches a model sees, and which it predicts: one block is shown, some others are predicted.

As CAPI draws them (Darcet et al., 2025). For each image a block of the patches, with a random
aspect ratio and place, is what the model sees; it may be rolled over the borders of the image, so
that it is in several parts. Of the other patches a random part is predicted.

All this is drawn for the global batch, by the step, and each rank takes its rows: any number of
ranks and workers has the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Generator, Tensor

from sslengine.data.augment.transform import Sample
from sslengine.data.batch.collators import Batch, default_collate, only_moves
from sslengine.data.batch.samplers import Place
from sslengine.data.loading.seeding import generator
from sslengine.data.ranges import in_order
from sslengine.errors import DataError
from sslengine.registry import register_collator

NAME = "visible_block_collator"
PATCH_SIZE = 16
MASKS = ("outside", "block", "random")


@register_collator(NAME)
@only_moves("data")
def visible_block_collator(
    batch: Sequence[Sample],
    patch_size: int = PATCH_SIZE,
    hidden: float = 0.65,
    predicted: float = 0.05,
    aspect_ratios: Sequence[float] = (0.5, 2.0),
    masks: Literal["outside", "block", "random"] = "outside",
    roll: bool = True,
) -> Batch:
    """`shown`, B x K, the patches that the model sees, and `predicted`, B x P, some of the others:
    indices of patches, row by row.

    patch_size: the side of a patch, in pixels; that of the trunk.
    hidden: the share of the patches that the model does not see.
    predicted: the share of these that is predicted, at random.
    aspect_ratios: the least and greatest height of a block by its width.
    masks: outside: what is outside a block is hidden; block: what is inside; random: any patches.
    roll: blocks are moved over the borders of the image, to the other side.
    """
    collated = default_collate(batch)
    if len(collated["data"]) != 1:
        raise DataError(f"{NAME} takes one view of each image, and got {len(collated['data'])}.")
    if patch_size < 1:
        raise DataError(f"{NAME}: expected a patch_size of 1 or more, got {patch_size}.")
    height, width = collated["data"][0].shape[-2:]
    rows, columns = height // patch_size, width // patch_size
    away = int(rows * columns * hidden)
    asked = int(away * predicted)
    _check(masks, aspect_ratios, rows * columns, away, asked)
    place = Place.of(batch)
    draw, total = generator(b"visible", *place.stream), max(place.size, place.first + len(batch))
    size = away if masks == "block" else rows * columns - away
    if masks == "random":
        inside = torch.rand(total, rows * columns, generator=draw).argsort(dim=1) < size
    else:
        drawn = [_block(draw, rows, columns, size, aspect_ratios, roll) for _ in range(total)]
        inside = torch.stack(drawn).flatten(1)
    seen = ~inside if masks == "block" else inside
    # Hidden patches in random order come first, then those that are shown.
    order = (torch.rand(seen.shape, generator=draw) + seen).argsort(dim=1)
    mine = slice(place.first, place.first + len(batch))
    shown = order[mine, away:].sort(dim=1).values
    return {**collated, "shown": [shown], "predicted": [order[mine, :asked].contiguous()]}


def _check(masks: str, aspects: Sequence[float], patches: int, away: int, asked: int) -> None:
    if masks not in MASKS:
        raise DataError(f"{NAME}: expected masks {', '.join(MASKS)}, got {masks!r}.")
    try:
        in_order("aspect_ratios", aspects)
    except ValueError as error:
        raise DataError(f"COLLATE_FUNCTION_PARAMS of {NAME}: {error}") from error
    if not 0 < away < patches or not 0 < asked <= away:
        raise DataError(
            f"{NAME}: of {patches} patches of an image {away} are hidden, of which {asked} are "
            f"predicted. Some must be shown and some predicted: change hidden or predicted in "
            f"COLLATE_FUNCTION_PARAMS, or take larger images or smaller patches."
        )


def _block(
    draw: Generator, rows: int, columns: int, size: int, aspects: Sequence[float], roll: bool
) -> Tensor:
    """rows x columns: true in so many patches of a block, of which the last row may be cut."""
    low = max(math.log(aspects[0]), math.log(size / columns**2))
    high = min(math.log(aspects[1]), math.log(rows**2 / size))
    ratio = math.exp(low + float(torch.rand((), generator=draw)) * (high - low))
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
