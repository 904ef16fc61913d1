"""Each collective at 2 and 4 ranks, against what one process computes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sslengine.distributed import collectives
from sslengine.distributed.ranks import rank, world_size
from tests.ranks import RankPool


def _rows(of_rank: int, count: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(of_rank)
    return torch.randn(count, 2, generator=generator, dtype=torch.float64)


def _gather_gradient() -> tuple[Tensor, Tensor, int]:
    own = _rows(rank()).requires_grad_()
    rows, start = collectives.gather(own)
    # A different function of the gathered rows on each rank, as losses of ranks differ.
    ((rows**2).sum() * (rank() + 1)).backward()
    return rows.detach(), own.grad, start


def test_gather_gives_all_rows_and_the_sum_of_all_ranks_gradients(four_ranks: RankPool) -> None:
    everything = torch.cat([_rows(r) for r in range(4)])
    factor = sum(r + 1 for r in range(4))
    for r, (rows, grad, start) in enumerate(four_ranks.run(_gather_gradient)):
        assert torch.equal(rows, everything)
        assert start == 3 * r
        torch.testing.assert_close(grad, 2 * factor * _rows(r), rtol=1e-12, atol=0)


def _gather_without_gradient() -> tuple[Tensor, int]:
    with torch.no_grad():
        return tuple(collectives.gather(_rows(rank(), count=rank() + 1)))


def test_gather_in_evaluation_takes_shares_of_different_sizes(two_ranks: RankPool) -> None:
    expected = torch.cat([_rows(0, 1), _rows(1, 2)])
    for (rows, start), begin in zip(two_ranks.run(_gather_without_gradient), (0, 1), strict=True):
        assert torch.equal(rows, expected)
        assert start == begin


def _sum_gradient() -> tuple[Tensor, Tensor]:
    own = _rows(rank()).requires_grad_()
    total = collectives.sum_over_ranks(own)
    (total**2).sum().backward()
    return total.detach(), own.grad


def test_sum_over_ranks_sends_back_the_sum_of_the_gradients(two_ranks: RankPool) -> None:
    total = _rows(0) + _rows(1)
    for value, grad in two_ranks.run(_sum_gradient):
        torch.testing.assert_close(value, total)
        # d/dx_r of sum over the 2 ranks of |total|^2
        torch.testing.assert_close(grad, 2 * 2 * total)


def _exchanged() -> tuple[Tensor, list[int]]:
    """Rank r has 10 r + s, s times, for each rank s."""
    leaving = torch.arange(world_size())
    rows = torch.repeat_interleave(10 * rank() + leaving, leaving).unsqueeze(1)
    counts = collectives.exchange_counts(leaving)
    came = collectives.exchange(rows, counts)
    assert torch.equal(collectives.exchange(came, counts.back()), rows)
    return came, counts.arriving


def test_exchange(four_ranks: RankPool) -> None:
    for r, (came, counts) in enumerate(four_ranks.run(_exchanged)):
        assert came.flatten().tolist() == [10 * other + r for other in range(4) for _ in range(r)]
        assert counts == [r] * 4
    rows = torch.ones(3, 2)
    alone = collectives.exchange_counts(torch.tensor([3]))
    assert alone == ([3], [3])
    assert torch.equal(collectives.exchange(rows, alone), rows)


def _put_into(order: list[int]) -> Tensor:
    share = len(order) // world_size()
    own = torch.arange(len(order)).view(world_size(), share)[rank()].unsqueeze(1) * 10.0
    return collectives.permuted(own, torch.tensor(order))


@pytest.mark.parametrize(
    "order",
    [
        [11, 3, 0, 7, 4, 1, 2, 9, 8, 10, 5, 6],
        [9, 10, 11, 6, 7, 8, 3, 4, 5, 0, 1, 2],  # whole shares
        list(range(12)),
    ],
)
def test_permuted(four_ranks: RankPool, order: list[int]) -> None:
    expected = [10.0 * each for each in order]
    assert torch.cat(four_ranks.run(_put_into, order)).flatten().tolist() == expected
    assert _put_into(order).flatten().tolist() == expected


def _all_the_rest() -> dict[str, object]:
    return {
        "sum_in_place": collectives.sum_in_place(torch.tensor(rank() + 1)).item(),
        "max_in_place": collectives.max_in_place(torch.tensor(10 - rank())).item(),
        "broadcast": collectives.broadcast(torch.tensor(rank() + 7)).item(),
        "broadcast_object": collectives.broadcast_object({"from": rank()}),
        "gather_objects": collectives.gather_objects(rank()),
        "any_rank": (
            collectives.any_rank(rank() == 1),
            collectives.any_rank(False),
        ),
        "barrier": collectives.barrier(),
        "world": world_size(),
    }


def test_what_ranks_tell_each_other(two_ranks: RankPool) -> None:
    for told in two_ranks.run(_all_the_rest):
        assert told == {
            "sum_in_place": 3,
            "max_in_place": 10,
            "broadcast": 7,
            "broadcast_object": {"from": 0},
            "gather_objects": [0, 1],
            "any_rank": (True, False),
            "barrier": None,
            "world": 2,
        }
