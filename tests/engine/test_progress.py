from __future__ import annotations

import pytest

from sslengine.engine.phases import Progress
from sslengine.engine.state import ALONE, find_group


def test_state_goes_round() -> None:
    one = Progress(phase=3, step=4, iteration=5, samples=6, num_updates=7)
    assert Progress.from_state(one.state_dict()) == one


def test_without_accumulation_each_step_is_a_group() -> None:
    assert find_group(3, [4] * 5, [4] * 5, 1) == ALONE


def test_groups_and_the_last_that_is_incomplete() -> None:
    sizes = [4, 4, 4, 4, 3]
    groups = [find_group(step, sizes, sizes, 2) for step in range(5)]
    assert [(g.first, g.last, g.weight) for g in groups] == [
        (True, False, 0.5),
        (False, True, 0.5),
        (True, False, 0.5),
        (False, True, 0.5),
        (True, True, 1.0),
    ]


def test_batches_weigh_by_their_samples() -> None:
    sizes = [4, 4, 2]
    weights = [find_group(step, sizes, sizes, 3).weight for step in range(3)]
    assert weights == pytest.approx([0.4, 0.4, 0.2])


def test_unequal_shares_of_ranks_weigh_by_their_samples() -> None:
    """Averaged over ranks, each sample of the group counts the same."""
    own, of_all = ([2, 1], [2, 2]), [4, 3]
    weights = [[find_group(step, mine, of_all, 2, 2).weight for step in range(2)] for mine in own]
    for mine, its in zip(own, weights):
        for size, weight in zip(mine, its):
            assert weight / 2 / size == pytest.approx(1 / 7)
    assert find_group(0, [4], [8], 1, 2) == ALONE
