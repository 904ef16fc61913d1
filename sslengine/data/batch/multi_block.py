"""Which patches a model sees, and which it predicts: one large block, less several small ones.

As I-JEPA draws them (Assran et al., 2023). A step has one size of target blocks and one size of
context blocks; their places are drawn for each image.

    targets    blocks of target_scale of the patches, at any place
    context    a block of context_scale of the patches, without those of the image's targets

Contexts are cut to the shortest of the step, from their end. All this is drawn for the global
batch, by the step, and each rank takes its rows: any number of ranks and workers has the same.

The authors' code differs from their paper: one random number gives a target's area and its
aspect ratio, no block reaches the last row or the last column, and each GPU cuts to its shortest
context. `places` chooses the first two; the third would depend on the ranks.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Generator, Tensor

from sslengine.data.augment.transform import Sample
from sslengine.data.batch.collators import Batch, default_collate, only_moves
from sslengine.data.batch.samplers import Place
from sslengine.data.loading.seeding import generator
from sslengine.data.ranges import in_order
from sslengine.errors import DataError
from sslengine.registry import register_collator

NAME = "multi_block_collator"
Block = tuple[int, int]
Range = Sequence[float]

# So often a context is drawn again before it may overlap one more of the targets.
ATTEMPTS = 20
PATCH_SIZE = 16
PLACES = ("code", "paper")


@register_collator(NAME)
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
    if places not in PLACES:
        raise DataError(f"{NAME}: expected places {' or '.join(PLACES)}, got {places!r}.")
    if targets < 1 or patch_size < 1:
        raise DataError(
            f"{NAME}: expected 1 or more targets and a patch_size of 1 or more, got {targets} and "
            f"{patch_size}."
        )
    try:
        in_order("target_scale", target_scale, most=1)
        in_order("context_scale", context_scale, most=1)
        in_order("target_aspect", target_aspect)
    except ValueError as error:
        raise DataError(f"COLLATE_FUNCTION_PARAMS of {NAME}: {error}") from error
    collated = default_collate(batch)
    if len(collated["data"]) != 1:
        raise DataError(f"{NAME} takes one view of each image, and got {len(collated['data'])}.")
    height, width = collated["data"][0].shape[-2:]
    grid = Grid(height // patch_size, width // patch_size, int(places == "code"))
    place = Place.of(batch)
    draw, total = generator(b"blocks", *place.stream), max(place.size, place.first + len(batch))
    target = grid.size(draw, target_scale, target_aspect)
    context = grid.size(draw, context_scale, (1.0, 1.0))
    if math.prod(context) <= min_keep:
        raise DataError(
            f"{NAME}: a context of {context[0]} x {context[1]} patches cannot have more than "
            f"min_keep, {min_keep}. Lower it in COLLATE_FUNCTION_PARAMS, or take larger images or "
            f"smaller patches."
        )
    hidden = grid.blocks(draw, target, total * targets).unflatten(0, (total, targets))
    seen = _contexts(grid, draw, context, hidden, min_keep)
    shortest = int(seen.sum((1, 2)).min())
    mine = slice(place.first, place.first + len(batch))
    shown, predicted = _indices(seen[mine], shortest), _indices(hidden[mine], math.prod(target))
    return {**collated, "shown": [shown], "target_blocks": [predicted]}


class Grid(NamedTuple):
    rows: int
    columns: int
    margin: int  # blocks stay away from the last so many rows and columns

    def size(self, draw: Generator, scale: Range, aspect: Range) -> Block:
        """Rows and columns of a block."""
        share = _random(draw)
        ratio = _between(aspect, share if self.margin else _random(draw))
        area = int(self.rows * self.columns * _between(scale, share))
        rows, columns = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        most = (self.rows - self.margin, self.columns - self.margin)
        return max(1, min(rows, most[0])), max(1, min(columns, most[1]))

    def blocks(self, draw: Generator, size: Block, count: int) -> Tensor:
        """count x rows x columns: true in a block of this size, each at another place."""
        along = []
        for side, length in zip((self.rows, self.columns), size):
            ends = side - length - self.margin + 1
            start = torch.randint(ends, (count, 1), generator=draw)
            patch = torch.arange(side)
            along.append((patch >= start) & (patch < start + length))
        return along[0].unsqueeze(2) & along[1].unsqueeze(1)


def _contexts(grid: Grid, draw: Generator, size: Block, hidden: Tensor, min_keep: int) -> Tensor:
    """count x rows x columns: true in the context of each image."""
    seen = grid.blocks(draw, size, len(hidden)) & ~hidden.any(1)
    for attempt in itertools.count(1):
        few = seen.sum((1, 2)) <= min_keep
        if not few.any():
            break
        avoided = max(0, hidden.shape[1] - attempt // ATTEMPTS)
        again = grid.blocks(draw, size, int(few.sum()))
        seen[few] = again & ~hidden[few, :avoided].any(1)
    return seen


def _indices(masks: Tensor, count: int) -> Tensor:
    """The first so many true patches of each mask."""
    hidden_last = masks.flatten(-2).logical_not().byte().argsort(dim=-1, stable=True)
    return hidden_last[..., :count].contiguous()


def _random(draw: Generator) -> float:
    return float(torch.rand((), generator=draw))


def _between(ends: Range, share: float) -> float:
    low, high = ends
    return low + share * (high - low)
