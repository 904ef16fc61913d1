"""Masks of a batch: where they are, how many, and that they depend on the seed and the step alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from sslengine.data.batch.block_masks import (
    ibot_multicrop_masking_collator,
    spread_masks_collator,
)
from sslengine.data.batch.samplers import (
    BatchSampler,
    DistributedBatchSampler,
    OrderedBatchSampler,
    Place,
    StreamBatchSampler,
)
from sslengine.data.loading.dataset import Samples
from sslengine.errors import DataError
from sslengine.launch.cli import main


def masked(index: int) -> dict[str, list[object]]:
    """Two large views and two small ones; what an image holds tells which it is."""
    sides = (8, 8, 4, 4)
    views = [torch.full((3, side, side), 10.0 * index + n) for n, side in enumerate(sides)]
    masks = [torch.full((side // 2, side // 2), bool((index + n) % 2)) for n, side in enumerate(sides)]  # fmt: skip
    follow = {"data_idx": [index] * 4, "data_valid": [1] * 4, "label": [index] * 4}
    return {"data": [*views], "mask": [*masks], **follow}


def test_ibot_global_and_local_views_apart_and_masks_with_the_global_ones() -> None:
    batch = ibot_multicrop_masking_collator([masked(0), masked(1), masked(2)])
    assert batch["global_views"][0][:, 0, 0, 0].tolist() == [0, 10, 20, 1, 11, 21]
    assert batch["global_views"][0].shape == (6, 3, 8, 8)
    assert batch["local_views"][0][:, 0, 0, 0].tolist() == [2, 12, 22, 3, 13, 23]
    assert batch["local_views"][0].shape == (6, 3, 4, 4)
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
    assert len(batch["global_views"][0]) == len(batch["mask"][0]) == 4


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


@pytest.mark.parametrize("recipe", ["ibot", "dinov2"])
def test_that_is_said_before_the_launch(
    recipe: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    crops = "config.DATA.TRAIN.TRANSFORMS.0.size_crops=[8,8]"
    assert main([f"config=quickstart/{recipe}", crops, f"config.CHECKPOINT.DIR={tmp_path}"]) == 2
    assert "8 x 8 pixels have 1 x 1 patches" in capsys.readouterr().err


def test_ibot_without_masks() -> None:
    (sample,) = [masked(0)]
    del sample["mask"]
    with pytest.raises(DataError, match="put MaskedImageModeling among the TRANSFORMS"):
        ibot_multicrop_masking_collator([sample])


# ---- spread over the global batch

SIDE, PATCH = 56, 4  # 14 x 14 patches, as of an image of 224 pixels


def crops(index: int) -> dict[str, Any]:
    views = [torch.full((3, side, side), 1.0 * index) for side in (SIDE, SIDE, 8)]
    return {"data": views, "data_idx": [index] * 3, "label": [0] * 3}


def of_rank(
    rank: int, world_size: int, size: int = 32, step: int = 1, seed: int = 5, stream: bool = False
) -> Any:
    own = size // world_size
    sampler: BatchSampler = DistributedBatchSampler(
        128, own, rank, world_size, seed=seed, drop_last=True
    )
    if stream:
        sampler = StreamBatchSampler(128, own, rank, world_size, True, "config.DATA.TRAIN")
    sampler.set_window(3, step)
    keys = next(iter(sampler))
    return Samples([crops(index) for _, index in keys], seed, keys)


def masks(samples: Any, **options: Any) -> dict[tuple[int, int], Tensor]:
    """By image and number of the global view."""
    batch = spread_masks_collator(samples, patch_size=PATCH, **options)
    (mask,), (at,) = batch["mask"], batch["patches_at"]
    assert torch.equal(at, mask.flatten().nonzero().flatten())
    images = batch["global_views"][0][:, 0, 0, 0].long().tolist()
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
    assert Place.of([1, 2, 3])[1:] == (0, 3)
    assert Place.of([1])[0] != Place.of([1])[0]
    sampler = OrderedBatchSampler(11, 2, 1, 2)
    places = [keys.place for keys in sampler]
    assert [(place.first, place.size) for place in places] == [(1, 3), (2, 4), (2, 4)]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [({"shares": [0.5, 0.1]}, "shares: expected two numbers from 0 to 1, in order"),
     ({"shares": [0.5]}, "shares: expected two numbers"), ({"shares": [0.5, 1.5]}, "to 1, in order"),
     ({"masked_views": 2}, "masked_views from 0 to 1"), ({"smallest_block": 0}, "smallest_block of 1"),
     ({"largest_block": 0}, "a largest_block above 0"),
     ({"aspect_ratios": [2, 1]}, "aspect_ratios: expected two numbers above 0, in order")],
)  # fmt: skip
def test_wrong_options(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        spread_masks_collator([crops(0)], **wrong)
