"""Which patches are hidden, shown and predicted: where, how many, the same for any ranks."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor

from sslengine.data.batch.masks import (
    Grid,
    ibot_multicrop_masking_collator,
    multi_block_collator,
    spread_masks_collator,
    visible_block_collator,
)
from sslengine.data.batch.samplers import (
    BatchSampler,
    DistributedBatchSampler,
    Keys,
    OrderedBatchSampler,
    Place,
)
from sslengine.data.loading.dataset import SampleBatch
from sslengine.errors import DataError


def masked(index: int) -> dict[str, list[object]]:
    """Two large views and two small ones; what an image holds tells which it is."""
    sides = (8, 8, 4, 4)
    views = [torch.full((3, side, side), 10.0 * index + n) for n, side in enumerate(sides)]
    masks = [torch.full((side // 2, side // 2), bool((index + n) % 2)) for n, side in enumerate(sides)]  # fmt: skip
    follow = {"data_idx": [index] * 4, "data_valid": [1] * 4, "label": [index] * 4}
    return {"data": [*views], "mask": [*masks], **follow}


def test_ibot_global_and_local_views_apart_and_masks_with_the_global_ones() -> None:
    batch = ibot_multicrop_masking_collator([masked(0), masked(1), masked(2)])
    large, small = (torch.stack(batch[each][0]) for each in ("global_views", "local_views"))
    assert large[..., 0, 0, 0].tolist() == [[0, 10, 20], [1, 11, 21]]
    assert large.shape == (2, 3, 3, 8, 8)
    assert small[..., 0, 0, 0].tolist() == [[2, 12, 22], [3, 13, 23]]
    assert small.shape == (2, 3, 3, 4, 4)
    assert batch["mask"][0].shape == (6, 4, 4)
    assert batch["mask"][0][:, 0, 0].tolist() == [False, True, False, True, False, True]
    assert batch["data_idx"][0].tolist() == [0, 1, 2] * 4
    assert batch.keys() == {
        "global_views", "local_views", "mask", "patches_at", "data_idx", "data_valid", "label",
    }  # fmt: skip


def test_ibot_without_local_views() -> None:
    samples = [{key: values[:2] for key, values in masked(index).items()} for index in range(2)]
    batch = ibot_multicrop_masking_collator(samples)
    assert "local_views" not in batch
    assert len(torch.cat(batch["global_views"][0])) == len(batch["mask"][0]) == 4


def test_views_one_patch_wide_are_refused() -> None:
    """No block fits: their patches would never be hidden."""
    view = torch.zeros(3, 48, 16)
    sample = {"data": [view] * 2, "data_idx": [0] * 2, "data_valid": [1] * 2, "label": [0] * 2}
    said = r"48 x 16 pixels have 3 x 1 patches.* Lower .*patch_size.* size of the views"
    with pytest.raises(DataError, match=said):
        spread_masks_collator([sample] * 2, patch_size=16)
    with pytest.raises(DataError, match=said):
        ibot_multicrop_masking_collator([{**sample, "mask": [torch.zeros(3, 1).bool()] * 2}] * 2)
    none = spread_masks_collator([sample] * 2, patch_size=16, masked_views=0)
    assert not none["mask"][0].any()


def test_ibot_without_masks() -> None:
    (sample,) = [masked(0)]
    del sample["mask"]
    with pytest.raises(DataError, match="put MaskedImageModeling among the TRANSFORMS"):
        ibot_multicrop_masking_collator([sample])


# ---- spread over the global batch

VIEW, PATCH = 56, 4  # 14 x 14 patches, as of an image of 224 pixels


def crops(index: int) -> dict[str, Any]:
    views = [torch.full((3, side, side), 1.0 * index) for side in (VIEW, VIEW, 8)]
    return {"data": views, "data_idx": [index] * 3, "label": [0] * 3}


def of_rank(
    rank: int, world_size: int, size: int = 32, step: int = 1, seed: int = 5, stream: bool = False
) -> Any:
    own = size // world_size
    sampler: BatchSampler = DistributedBatchSampler(
        128, own, rank, world_size, seed=seed, drop_last=True
    )
    if stream:
        sampler = DistributedBatchSampler(
            128, own, rank, world_size, seed=0, drop_last=True, shuffle=False
        )
    sampler.set_window(3, step)
    keys = next(iter(sampler))
    return SampleBatch([crops(index) for _, index in keys], seed, keys)


def masks(samples: Any, **options: Any) -> dict[tuple[int, int], Tensor]:
    """By image and number of the global view."""
    batch = spread_masks_collator(samples, patch_size=PATCH, **options)
    (mask,), (at,) = batch["mask"], batch["patches_at"]
    assert torch.equal(at, mask.flatten().nonzero().flatten())
    images = torch.cat(batch["global_views"][0])[:, 0, 0, 0].long().tolist()
    views = [0] * len(samples) + [1] * len(samples)
    return dict(zip(zip(images, views, strict=True), mask, strict=True))


def shares(found: dict[tuple[int, int], Tensor]) -> Tensor:
    return torch.stack([mask.float().mean() for mask in found.values()]).sort().values


def test_half_of_the_views_are_masked_and_their_shares_are_spread_evenly() -> None:
    found = shares(masks(of_rank(0, 1)))
    assert (found == 0).sum() == 32
    # The i-th of 32 masks draws its share from the i-th part of 0.1 to 0.5; no mask hides more, and
    # blocks do not always fill what is left.
    upper = 0.1 + 0.4 * torch.arange(1, 33) / 32
    assert (found[32:] <= upper).all()
    assert (upper - found[32:]).mean() < 0.4 / 32 / 2 + 0.02
    odd = shares(masks(of_rank(0, 1), masked_views=0.3, shares=[0.4, 0.4], largest_block=0.1))
    assert (odd > 0).sum() == int(64 * 0.3)
    hidden = (odd[-19:] * 196).round()
    assert 74 < hidden.mean() <= hidden.max() <= int(196 * 0.4)


def test_small_images_are_masked_too() -> None:
    """Of 6 x 6 patches a mask hides fewer than the smallest block of large images."""
    batch = spread_masks_collator([crops(n) for n in range(40)], patch_size=9, smallest_block=16)
    hidden = batch["mask"][0].flatten(1).sum(1)
    assert hidden.max() <= 18
    assert (hidden > 0).sum() > 30
    assert ((hidden > 0) & (hidden < 10)).sum() > 5


@pytest.mark.parametrize("stream", [False, True])
def test_masks_are_the_same_for_any_number_of_ranks(stream: bool) -> None:
    alone = masks(of_rank(0, 1, stream=stream))
    for ranks in (2, 4):
        parts = [masks(of_rank(rank, ranks, stream=stream)) for rank in range(ranks)]
        assert sum(map(len, parts)) == len(alone) == 64
        for image, mask in (pair for part in parts for pair in part.items()):
            assert torch.equal(mask, alone[image])


@pytest.mark.parametrize("other", [{"step": 2}, {"seed": 6}])
def test_other_steps_and_seeds_have_other_masks(other: dict[str, int]) -> None:
    one, two = (torch.stack([*masks(of_rank(0, 1, **each)).values()]) for each in ({}, other))
    assert ((one.flatten(1).any(1)) != (two.flatten(1).any(1))).any()
    assert not torch.equal(one, two)


def test_places_of_a_batch_without_a_sampler_and_of_an_ordered_one() -> None:
    assert Place.find([1, 2, 3])[1:] == (0, 3)
    assert Place.find([1])[0] != Place.find([1])[0]
    sampler = OrderedBatchSampler(11, 2, 1, 2)
    places = [keys.place for keys in sampler]
    assert [(place.first, place.size) for place in places] == [(1, 3), (2, 4), (2, 4)]


# ---- one view of each image: blocks as I-JEPA draws them

SIDE = 16


def samples(
    count: int, step: int = 0, first: int = 0, total: int = 0, seed: int = 0
) -> SampleBatch:
    made = [{"data": [torch.zeros(3, SIDE, SIDE)], "label": [0]} for _ in range(count)]
    keys = Keys((2, index) for index in range(count))
    keys.place = Place((2, step), first, total or count)
    return SampleBatch(made, seed, keys)


def draw_blocks(batch: SampleBatch, **params: Any) -> tuple[Tensor, Tensor]:
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
        shown, blocks = draw_blocks(samples(6, step), places=places)
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


def test_ranks_have_their_rows_of_the_blocks_that_one_process_draws() -> None:
    shown, blocks = draw_blocks(samples(6, 5))
    for first, count in ((0, 2), (2, 3), (5, 1)):
        one = draw_blocks(samples(count, 5, first, total=6))
        assert torch.equal(one[0], shown[first : first + count])
        assert torch.equal(one[1], blocks[first : first + count])
    for other in (samples(6, 4), samples(6, 5, seed=1)):
        assert not torch.equal(draw_blocks(other)[1][:, :, 0], blocks[:, :, 0])


def test_a_context_that_is_too_small_may_overlap_targets() -> None:
    """Targets cover nearly all, so nothing is left of most contexts."""
    shown, blocks = draw_blocks(samples(8), targets=9, min_keep=60)
    assert shown.shape[1] > 60
    overlaps = [
        ({*a.tolist()} & {*b.flatten().tolist()}) for a, b in zip(shown, blocks, strict=True)
    ]
    assert any(overlaps)


def test_samples_by_hand_draw_from_the_global_stream() -> None:
    random.seed(3)
    one = draw_blocks(list(samples(2)))  # type: ignore[arg-type]
    random.seed(3)
    two = draw_blocks(list(samples(2)))  # type: ignore[arg-type]
    assert all(map(torch.equal, one, two))


# ---- blocks as CAPI draws them

# facebookresearch/capi 98b4fa1: InverseBlockMasking and collate_data_and_cast, 16 x 16 patches, of
# which int(256 * 0.65) are hidden and int(166 * 0.05) predicted.
HIDDEN, PREDICTED = 166, 8


def draw_visible(*sample: int, **params: Any) -> tuple[Tensor, Tensor]:
    collated = visible_block_collator(samples(*sample), **{"patch_size": 1, **params})
    return collated["shown"][0], collated["predicted"][0]


def maps(shown: Tensor) -> Tensor:
    return torch.zeros(len(shown), SIDE * SIDE).scatter(1, shown, 1.0).view(-1, SIDE, SIDE)


@pytest.mark.parametrize("masks", ["outside", "block", "random"])
def test_what_is_predicted_is_hidden(masks: str) -> None:
    shown, predicted = draw_visible(64, masks=masks)
    assert shown.shape == (64, SIDE * SIDE - HIDDEN)
    assert predicted.shape == (64, PREDICTED)
    for seen, asked in zip(shown.tolist(), predicted.tolist(), strict=True):
        assert len({*seen, *asked}) == SIDE * SIDE - HIDDEN + PREDICTED
        assert seen == sorted(seen)
    asked = maps(predicted).sum(0)
    assert 0.5 < asked[: SIDE // 2].sum() / asked[SIDE // 2 :].sum() < 2


@pytest.mark.parametrize(("masks", "size"), [("outside", 90), ("block", 166)])
def test_a_block_is_one_rectangle_that_may_be_rolled(masks: str, size: int) -> None:
    """Only its last rows may be cut, to the number of patches."""
    for roll in (False, True):
        shown, _ = draw_visible(64, masks=masks, roll=roll)
        inside = maps(shown) if masks == "outside" else 1 - maps(shown)
        ratios, whole = [], 0
        for each in inside.bool():
            assert int(each.sum()) == size
            rows, columns = int(each.any(1).sum()), int(each.any(0).sum())
            assert each.sum(1).max() == columns
            assert (each.sum(1)[each.any(1)] == columns).sum() >= rows - 2
            ratios.append(rows / columns)
            down, across = (each.any(side).nonzero().flatten() for side in (1, 0))
            whole += int(down[-1] - down[0] == rows - 1 and across[-1] - across[0] == columns - 1)
        assert (whole == 64) == (not roll)
        assert 0.4 < min(ratios) < 0.8 < 1.25 < max(ratios) < 2.4


def test_ranks_have_their_rows_of_the_visible_blocks_too() -> None:
    whole = draw_visible(6, 5)
    for first, count in ((0, 2), (2, 3), (5, 1)):
        one = draw_visible(count, 5, first, 6)
        for part, of_all in zip(one, whole, strict=True):
            assert torch.equal(part, of_all[first : first + count])
    for other in (draw_visible(6, 4), draw_visible(6, 5, 0, 0, 1)):
        assert not torch.equal(other[0], whole[0])


# ---- what cannot be drawn

SPREAD, MULTI, VISIBLE = spread_masks_collator, multi_block_collator, visible_block_collator


@pytest.mark.parametrize(
    ("collate", "params", "key"),
    [
        (SPREAD, {"shares": [10, 50]}, "shares"), (SPREAD, {"masked_views": 50}, "masked_views"),
        (MULTI, {"min_keep": 225}, "min_keep"),
        (VISIBLE, {"hidden": 1.0}, "of 256 patches of an image 256 are hidden"),
        (VISIBLE, {"predicted": 0.001}, "166 are hidden, of which 0 are predicted"),
    ],
)  # fmt: skip
def test_what_cannot_be_drawn_is_refused(collate: Any, params: dict[str, Any], key: str) -> None:
    batch: Any = [crops(0)] if collate is SPREAD else samples(2)
    with pytest.raises(DataError, match=key):
        collate(batch, **{"patch_size": 1, **params})


@pytest.mark.parametrize("collate", [MULTI, VISIBLE])
def test_one_view_of_each_image(collate: Any) -> None:
    batch = samples(2)
    for each in batch:
        each["data"] = each["data"] * 2
    with pytest.raises(DataError, match="one view of each image, and got 2"):
        collate(batch)
