from __future__ import annotations

import pytest

from sslengine.task.progress import ALONE, Progress, group_of


def test_state_goes_round() -> None:
    one = Progress(phase=3, step=4, iteration=5, samples=6, num_updates=7)
    two = Progress()
    two.load_state_dict(one.state_dict())
    assert two == one


def test_without_accumulation_each_step_is_a_group() -> None:
    assert group_of(3, 5, 1, [4] * 5) == ALONE


def test_groups_and_the_last_that_is_incomplete() -> None:
    groups = [group_of(step, 5, 2, [4, 4, 4, 4, 3]) for step in range(5)]
    assert [(g.first, g.last, g.weight) for g in groups] == [
        (True, False, 0.5),
        (False, True, 0.5),
        (True, False, 0.5),
        (False, True, 0.5),
        (True, True, 1.0),
    ]


def test_batches_weigh_by_their_samples() -> None:
    weights = [group_of(step, 3, 3, [4, 4, 2]).weight for step in range(3)]
    assert weights == pytest.approx([0.4, 0.4, 0.2])
