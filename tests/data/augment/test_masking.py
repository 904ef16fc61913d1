"""Block masks: what is promised of each, and statistics over many."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest
import torch

from sslengine.data.augment import masking
from sslengine.data.augment.masking import (
    MaskedImageModeling,
    RandomPatchMask,
)

ASPECTS = (0.3, 1 / 0.3)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    random.seed(0)


def masks(count: int, side: int = 224, **keys: Any) -> np.ndarray[Any, Any]:
    transform, image = MaskedImageModeling(**keys), torch.zeros(3, side, side)
    return np.stack([transform(image)["mask"].numpy() for _ in range(count)])


def test_a_mask_has_a_place_for_each_patch_and_the_image_stays() -> None:
    image = torch.rand(3, 70, 96)
    given = MaskedImageModeling(patch_size=16)(image)
    assert given["data"] is image
    assert given["mask"].dtype is torch.bool
    assert given["mask"].shape == (4, 6)


def test_no_mask_hides_more_than_asked_for_and_most_hide_nearly_so_many() -> None:
    hidden = masks(400).mean((1, 2))
    assert hidden.max() <= 0.3
    # What is missing is less than the smallest block, a third of the side squared, 16 of 196.
    assert hidden.mean() > 0.3 - 16 / 196
    assert 0.26 < np.median(hidden) <= 0.3


def test_shares_are_drawn_around_the_means() -> None:
    """As iBOT's recipe has it: every other image nothing, or a share from 0.1 to 0.5."""
    hidden = masks(600, pred_ratio_mean=[0.0, 0.3], pred_ratio_var=[0.0, 0.2]).mean((1, 2))
    none = (hidden == 0).mean()
    assert abs(none - 0.5) < 5 * math.sqrt(0.25 / 600)
    assert hidden.max() <= 0.5
    # Even over 0.1 to 0.5, less what no block fits into.
    assert 0.3 - 16 / 196 - 0.03 < hidden[hidden > 0].mean() <= 0.33


def test_blocks_have_the_sides_that_were_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """One block in each mask: as much room as it takes, then none."""
    ratios, areas = [], []
    for _ in range(500):
        mask = np.zeros((60, 60), dtype=bool)
        assert masking._add_block(mask, 900, ASPECTS, 400, random)
        rows, columns = (np.flatnonzero(mask.any(axis)) for axis in (1, 0))
        height, width = np.ptp(rows) + 1, np.ptp(columns) + 1
        assert mask.sum() == height * width  # a full rectangle
        ratios.append(height / width)
        areas.append(height * width)
    logs = np.log(ratios)
    assert np.abs(logs).max() < math.log(1 / 0.3) + 0.1  # sides are whole patches
    bound = 5 * math.log(1 / 0.3) / math.sqrt(3 * 500)
    assert abs(logs.mean()) < bound  # as often high as wide
    assert abs(np.mean(logs**2) - math.log(1 / 0.3) ** 2 / 3) < 0.15  # even in the logarithm
    assert min(areas) > 400 * 0.9
    assert max(areas) <= 900
    assert abs(np.mean(areas) - 650) < 5 * 500 / math.sqrt(12 * 500) + 15


def test_any_place_may_be_hidden() -> None:
    often = masks(600).mean(0)
    assert often.min() > 0
    assert np.abs(often - often[::-1]).max() < 0.12  # top as bottom
    assert np.abs(often - often[:, ::-1]).max() < 0.12


def test_whole_cells_are_hidden_of_each_image_as_many_and_anywhere() -> None:
    """SimMIM's default: 30 of the 49 cells of 32 pixels."""
    torch.manual_seed(0)
    transform, image = RandomPatchMask(), torch.zeros(3, 224, 224)
    drawn = torch.stack([transform(image)["mask"] for _ in range(200)])
    assert drawn.shape == (200, 14, 14)
    assert drawn.dtype is torch.bool
    cells = drawn.view(200, 7, 2, 7, 2).permute(0, 1, 3, 2, 4).flatten(3)
    assert torch.equal(cells.any(-1), cells.all(-1))
    assert set(cells.any(-1).flatten(1).sum(1).tolist()) == {30}
    often = cells.any(-1).double().mean(0)
    assert (often - 30 / 49).abs().max() < 5 * math.sqrt(0.25 / 200)


def test_cells_that_do_not_divide_the_image() -> None:
    with pytest.raises(ValueError, match=r"cells of 32 pixels .*\(100, 224\)"):
        RandomPatchMask()(torch.zeros(3, 100, 224))
