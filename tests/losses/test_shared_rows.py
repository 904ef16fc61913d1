"""Rows that are shared out, against the whole tensor, at 1, 2 and 4 ranks."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sslengine.distributed.ranks import rank
from sslengine.distributed.sharding import is_sharded, local, whole
from sslengine.losses.memory import fetch, locate, own_rows, rows_of_a_rank, share_out
from tests.ranks import RankPool


def _all(count: int) -> Tensor:
    return torch.arange(2.0 * count).view(count, 2)


def _shared(count: int) -> Tensor:
    return share_out(_all(count)[own_rows(count)].clone(), count)


def _cut(count: int) -> tuple[list[float], int, Tensor]:
    tensor = _shared(count)
    assert is_sharded(tensor)
    return local(tensor)[:, 0].tolist(), rows_of_a_rank(count), whole(tensor)


@pytest.mark.parametrize(
    ("count", "rows"), [(5, [[0, 1], [2, 3], [4], []]), (2, [[0], [1], [], []])]
)
def test_ranks_hold_their_rows(four_ranks: RankPool, count: int, rows: list[list[int]]) -> None:
    results = four_ranks.run(_cut, count)
    assert [own for own, _, _ in results] == [[2.0 * row for row in each] for each in rows]
    assert {block for _, block, _ in results} == {len(rows[0])}
    assert all(torch.equal(everything, _all(count)) for *_, everything in results)


def test_one_process_holds_all() -> None:
    assert own_rows(5) == slice(0, 5)
    assert torch.equal(_shared(5), _all(5))
    assert not is_sharded(_shared(5))
    rows = torch.tensor([[3, 3], [0, 4]])
    assert torch.equal(fetch(_shared(5), rows), _all(5)[rows])


def _asked(count: int, shape: tuple[int, ...]) -> Tensor:
    """Another list on every rank; that of rank 1 asks for nothing."""
    generator = torch.Generator().manual_seed(rank())
    return torch.randint(count, shape if rank() != 1 else (0,), generator=generator)


def _fetched(count: int, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    rows = _asked(count, shape)
    return fetch(_shared(count), rows), rows


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("count", [1, 3, 50])
@pytest.mark.parametrize("shape", [(0,), (7,), (2, 5)])
def test_ranks_get_what_they_ask_for(
    ranks: int, count: int, shape: tuple[int, ...], request: pytest.FixtureRequest
) -> None:
    pool: RankPool = request.getfixturevalue({2: "two_ranks", 4: "four_ranks"}[ranks])
    for found, rows in pool.run(_fetched, count, shape):
        assert torch.equal(found, _all(count)[rows])


def _written(count: int) -> Tensor:
    tensor, rows = _shared(count), torch.tensor([4, 0, 3])
    here, places, is_here = locate(tensor, rows)
    here[places[is_here]] = -1.0
    return whole(tensor)


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_rank_knows_which_rows_are_here(ranks: int, request: pytest.FixtureRequest) -> None:
    pool: RankPool = request.getfixturevalue({2: "two_ranks", 4: "four_ranks"}[ranks])
    expected = _all(5)
    expected[[4, 0, 3]] = -1.0
    assert torch.equal(_written(5), expected)
    assert all(torch.equal(each, expected) for each in pool.run(_written, 5))
