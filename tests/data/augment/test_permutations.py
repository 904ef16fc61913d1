from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sslengine.data.augment.permutations import distinct_permutations


def distances(rows: np.ndarray) -> np.ndarray:
    return (rows[:, None] != rows[None]).sum(2)


@given(st.integers(2, 5), st.integers(1, 120), st.integers(0, 3))
def test_rows_are_permutations_and_none_comes_twice(pieces: int, count: int, seed: int) -> None:
    every = list(permutations(range(pieces)))
    count = min(count, len(every))
    rows = distinct_permutations(count, pieces, seed)
    taken = [tuple(row) for row in rows.tolist()]
    assert rows.shape == (count, pieces)
    assert len(set(taken)) == count
    assert set(taken) <= set(every)


@given(st.integers(3, 5), st.integers(2, 20), st.integers(0, 3))
def test_each_is_the_farthest_there_was(pieces: int, count: int, seed: int) -> None:
    every = np.array(list(permutations(range(pieces))))
    rows = distinct_permutations(min(count, len(every)), pieces, seed)
    for number in range(1, len(rows)):
        scores = [
            (distance.min(), distance.sum())
            for distance in (rows[:number] != each for each in every[:, None])
            for distance in [distance.sum(1)]
        ]
        mine = (rows[:number] != rows[number]).sum(1)
        assert (mine.min(), mine.sum()) == max(scores)


def test_nine_patches_differ_everywhere_while_they_can() -> None:
    rows = distinct_permutations(64)
    assert distances(rows[:4])[~np.eye(4, dtype=bool)].tolist() == [9] * 12
    apart = distances(rows)[~np.eye(64, dtype=bool)]
    assert apart.min() >= 7
    assert apart.mean() > 8.1


def test_the_same_on_every_machine() -> None:
    assert distinct_permutations(3).tolist() == [
        [5, 7, 0, 4, 2, 3, 6, 1, 8],
        [6, 1, 3, 7, 4, 8, 2, 5, 0],
        [4, 5, 8, 2, 6, 0, 3, 7, 1],
    ]
    assert distinct_permutations(3, seed=1).tolist() != distinct_permutations(3).tolist()


def test_they_are_shared_and_so_cannot_be_changed() -> None:
    assert distinct_permutations(2, 4) is distinct_permutations(2, 4)
    with pytest.raises(ValueError, match="read-only"):
        distinct_permutations(2, 4)[0, 0] = 1


@pytest.mark.parametrize(
    ("count", "pieces", "message"),
    [
        (1, 1, "expected 2 to 9 pieces, got 1"),
        (1, 10, "expected 2 to 9 pieces, got 10"),
        (0, 4, "4 pieces have 24 permutations; asked for 0"),
        (25, 4, "4 pieces have 24 permutations; asked for 25"),
    ],
)
def test_more_than_there_are(count: int, pieces: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        distinct_permutations(count, pieces)
