from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from sslengine.data.batch.visible_block import visible_block_collator
from sslengine.errors import DataError
from tests.data.batch.test_multi_block import SIDE, samples

# facebookresearch/capi 98b4fa1: InverseBlockMasking and collate_data_and_cast, 16 x 16 patches, of
# which int(256 * 0.65) are hidden and int(166 * 0.05) predicted.
HIDDEN, PREDICTED = 166, 8


def drawn(*sample: int, **params: Any) -> tuple[Tensor, Tensor]:
    collated = visible_block_collator(samples(*sample), **{"patch_size": 1, **params})
    return collated["shown"][0], collated["predicted"][0]


def maps(shown: Tensor) -> Tensor:
    return torch.zeros(len(shown), SIDE * SIDE).scatter(1, shown, 1.0).view(-1, SIDE, SIDE)


@pytest.mark.parametrize("masks", ["outside", "block", "random"])
def test_what_is_predicted_is_hidden(masks: str) -> None:
    shown, predicted = drawn(64, masks=masks)
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
        shown, _ = drawn(64, masks=masks, roll=roll)
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


def test_ranks_have_their_rows_of_what_one_process_draws() -> None:
    whole = drawn(6, 5)
    for first, count in ((0, 2), (2, 3), (5, 1)):
        one = drawn(count, 5, first, 6)
        for part, of_all in zip(one, whole, strict=True):
            assert torch.equal(part, of_all[first : first + count])
    for other in (drawn(6, 4), drawn(6, 5, 0, 0, 1)):
        assert not torch.equal(other[0], whole[0])


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"masks": "inside"}, "expected masks outside, block, random, got 'inside'"),
        ({"aspect_ratios": [2.0, 0.5]}, "aspect_ratios: expected two numbers above 0, in order"),
        ({"patch_size": 0}, "a patch_size of 1 or more, got 0"),
        ({"hidden": 1.0}, "of 256 patches of an image 256 are hidden"),
        ({"predicted": 0.001}, "166 are hidden, of which 0 are predicted"),
    ],
)
def test_what_cannot_be_drawn_is_refused(params: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        drawn(2, **params)


def test_one_view_of_each_image() -> None:
    batch = samples(2)
    for each in batch:
        each["data"] = each["data"] * 2
    with pytest.raises(DataError, match="one view of each image, and got 2"):
        visible_block_collator(batch)
