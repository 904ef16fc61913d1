from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor

from sslengine.data.batch.multi_block import Grid, multi_block_collator
from sslengine.data.batch.samplers import Keys, Place
from sslengine.data.loading.dataset import Samples
from sslengine.errors import DataError

SIDE = 16


def samples(count: int, step: int = 0, first: int = 0, total: int = 0, seed: int = 0) -> Samples:
    made = [{"data": [torch.zeros(3, SIDE, SIDE)], "label": [0]} for _ in range(count)]
    keys = Keys((2, index) for index in range(count))
    keys.place = Place((2, step), first, total or count)
    return Samples(made, seed, keys)


def drawn(batch: Samples, **params: Any) -> tuple[Tensor, Tensor]:
    collated = multi_block_collator(batch, **{"patch_size": 1, **params})
    return collated["shown"][0], collated["target_blocks"][0]


# facebookresearch/ijepa 52c1ae9, MaskCollator._sample_block_size with a generator of seeds 0 to 7:
# rows and columns of target and context block, for 224 pixels and patches of 14 and of 16.
OFFICIAL = {
    16: [(7, 6), (8, 6), (7, 6), (5, 7), (7, 6), (8, 6), (7, 6), (7, 6)],
    14: [(6, 6), (7, 5), (7, 5), (5, 6), (6, 5), (7, 5), (6, 5), (6, 5)],
}


@pytest.mark.parametrize("side", OFFICIAL)
def test_sizes_of_blocks_are_those_of_the_official_code(side: int) -> None:
    grid = Grid(side, side, 1)
    for seed, target in enumerate(OFFICIAL[side]):
        draw = torch.Generator().manual_seed(seed)
        assert grid.size(draw, (0.15, 0.2), (0.75, 1.5)) == target
        assert grid.size(draw, (0.85, 1.0), (1.0, 1.0)) == (side - 1, side - 1)


@pytest.mark.parametrize("places", ["code", "paper"])
def test_blocks_are_rectangles_and_contexts_avoid_them(places: str) -> None:
    """As the code has it, the last row and column are never used; as the paper, all are."""
    used = torch.zeros(SIDE, SIDE)
    for step in range(20):
        shown, blocks = drawn(samples(6, step), places=places)
        assert blocks.shape[:2] == (6, 4)
        assert len(shown) == 6
        assert shown.shape[1] > 10
        sizes = set()
        for context, own in zip(shown, blocks, strict=True):
            assert len({*context.tolist()}) == len(context)
            assert not {*context.tolist()} & {*own.flatten().tolist()}
            for block in own:
                rows, columns = block // SIDE, block % SIDE
                size = [int(each.max() - each.min()) + 1 for each in (rows, columns)]
                assert size[0] * size[1] == len(block)
                assert 0.12 * SIDE**2 < len(block) < 0.22 * SIDE**2
                assert 0.6 < size[0] / size[1] < 1.8
                sizes.add(tuple(size))
            for each in (*own.flatten(), *context):
                used.view(-1)[each] = 1
        assert len(sizes) == 1  # of a step, all blocks have one size
    last = torch.cat([used[-1], used[:, -1]])
    assert last.any() == (places == "paper")
    assert used[:-1, :-1].all()


def test_the_ratio_follows_the_area_in_the_code_alone() -> None:
    """One random number for both, or one for each."""
    for margin in (1, 0):
        grid = Grid(100, 100, margin)
        found = [
            grid.size(torch.Generator().manual_seed(seed), (0.15, 0.2), (0.75, 1.5))
            for seed in range(300)
        ]
        areas = torch.tensor([rows * columns for rows, columns in found], dtype=torch.float64)
        ratios = torch.tensor([rows / columns for rows, columns in found], dtype=torch.float64)
        together = torch.corrcoef(torch.stack([areas, ratios]))[0, 1].item()
        assert together > 0.95 if margin else abs(together) < 0.2


def test_ranks_have_their_rows_of_what_one_process_draws() -> None:
    shown, blocks = drawn(samples(6, 5))
    for first, count in ((0, 2), (2, 3), (5, 1)):
        one = drawn(samples(count, 5, first, total=6))
        assert torch.equal(one[0], shown[first : first + count])
        assert torch.equal(one[1], blocks[first : first + count])
    for other in (samples(6, 4), samples(6, 5, seed=1)):
        assert not torch.equal(drawn(other)[1][:, :, 0], blocks[:, :, 0])


def test_a_context_that_is_too_small_may_overlap_targets() -> None:
    """Targets cover nearly all, so nothing is left of most contexts."""
    shown, blocks = drawn(samples(8), targets=9, min_keep=60)
    assert shown.shape[1] > 60
    overlaps = [
        ({*a.tolist()} & {*b.flatten().tolist()}) for a, b in zip(shown, blocks, strict=True)
    ]
    assert any(overlaps)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"min_keep": 225}, "15 x 15 patches cannot have more than min_keep, 225"),
        (
            {"target_scale": [-0.2, 0.2]},
            "target_scale: expected two numbers above 0 to 1, in order",
        ),
        ({"context_scale": [0.5]}, "context_scale: expected two numbers"),
        ({"target_aspect": [2.0, 1.0]}, "target_aspect: expected two numbers above 0, in order"),
        ({"patch_size": 0}, "a patch_size of 1 or more, got 4 and 0"),
        ({"places": "papers"}, "expected places code or paper, got 'papers'"),
    ],
)
def test_what_cannot_be_drawn_is_refused(params: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        drawn(samples(2), **params)


def test_one_view_of_each_image() -> None:
    batch = samples(2)
    for each in batch:
        each["data"] = each["data"] * 2
    with pytest.raises(DataError, match="one view of each image, and got 2"):
        drawn(batch)


def test_samples_by_hand_draw_from_the_global_stream() -> None:
    random.seed(3)
    one = drawn(list(samples(2)))  # type: ignore[arg-type]
    random.seed(3)
    two = drawn(list(samples(2)))  # type: ignore[arg-type]
    assert all(map(torch.equal, one, two))
