"""Sinkhorn-Knopp against the paper's two lines in float64, entry by entry, at 1, 2 and 4 ranks."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from sslengine.distributed.ranks import rank, world_size
from sslengine.losses.sinkhorn import power_law, sinkhorn
from tests.ranks import RankPool


def by_the_paper(
    scores: list[list[float]],
    epsilon: float,
    iterations: int,
    shares: list[float] | None = None,
    counted: list[bool] | None = None,
) -> Tensor:
    """Rows and columns of Q scaled in turn, no logarithms. Samples that do not count: no mass."""
    samples, prototypes = range(len(scores)), range(len(scores[0]))
    shares = shares or [1 / len(prototypes)] * len(prototypes)
    counted = counted or [True] * len(scores)
    q = [[math.exp(s / epsilon) for s in row] for row in scores]
    for _ in range(iterations):
        for k in prototypes:
            mass = sum(q[b][k] for b in samples if counted[b])
            for b in samples:
                q[b][k] *= shares[k] / mass
        for b in samples:
            mass = sum(q[b])
            q[b] = [value / mass / len(scores) for value in q[b]]
    return torch.tensor([[v / sum(row) for v in row] for row in q], dtype=torch.float64)


def _scores(rows: int, prototypes: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 2 * torch.rand(rows, prototypes, generator=generator, dtype=torch.float64) - 1


@given(
    rows=st.integers(1, 9),
    prototypes=st.integers(1, 7),
    iterations=st.integers(0, 5),
    epsilon=st.sampled_from([0.02, 0.05, 0.3, 10.0]),
    exponent=st.sampled_from([None, 0.0, 0.25, 2.0]),
    seed=st.integers(0, 10_000),
)
def test_value(
    rows: int, prototypes: int, iterations: int, epsilon: float, exponent: float | None, seed: int
) -> None:
    scores = _scores(rows, prototypes, seed)
    shares = wanted = None
    if exponent is not None:
        shares = power_law(prototypes, exponent, like=scores)
        powers = [1 / (k + 1) ** exponent for k in range(prototypes)]
        wanted = [each / sum(powers) for each in powers]
        torch.testing.assert_close(shares.tolist(), wanted)
    ours = sinkhorn(scores, epsilon, iterations, shares)
    expected = by_the_paper(scores.tolist(), epsilon, iterations, wanted)
    torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-12)


@given(
    rows=st.integers(1, 6),
    prototypes=st.integers(1, 5),
    seed=st.integers(0, 10_000),
    data=st.data(),
)
def test_samples_that_do_not_count_are_assigned_and_weigh_nothing(
    rows: int, prototypes: int, seed: int, data: st.DataObject
) -> None:
    counted = [True, *data.draw(st.lists(st.booleans(), min_size=rows - 1, max_size=rows - 1))]
    scores = _scores(rows, prototypes, seed)
    ours = sinkhorn(scores, 0.1, 3, counted=torch.tensor(counted))
    expected = by_the_paper(scores.tolist(), 0.1, 3, counted=counted)
    torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-12)
    alone = sinkhorn(scores[torch.tensor(counted)], 0.1, 3)
    torch.testing.assert_close(ours[torch.tensor(counted)], alone, rtol=1e-9, atol=1e-12)


def test_problems_side_by_side_do_not_touch() -> None:
    scores = torch.stack([_scores(5, 3, 0), _scores(5, 3, 1)])
    both = sinkhorn(scores, 0.05, 3)
    for index in (0, 1):
        torch.testing.assert_close(both[index], sinkhorn(scores[index], 0.05, 3))


def test_many_iterations_end_in_equal_shares() -> None:
    q = sinkhorn(_scores(12, 4, 0), 0.5, 200)
    torch.testing.assert_close(q.sum(dim=0), torch.full((4,), 3.0, dtype=torch.float64))
    torch.testing.assert_close(q.sum(dim=1), torch.ones(12, dtype=torch.float64))


def test_ties_stay_ties() -> None:
    q = sinkhorn(torch.ones(6, 4), 0.05, 3)
    torch.testing.assert_close(q, torch.full((6, 4), 0.25))


@pytest.mark.parametrize("epsilon", [1e-2, 1e-3, 1e-6])
def test_single_precision_at_an_epsilon_that_underflows_exp(epsilon: float) -> None:
    """exp(-2 / 1e-3) is 0 in any precision: all of a prototype's scores would vanish."""
    scores = _scores(8, 5, 0).float()
    scores[:, 4] = -1.0  # a prototype that is far from every sample
    q = sinkhorn(scores, epsilon, 3)
    assert torch.isfinite(q).all()
    torch.testing.assert_close(q.sum(dim=1), torch.ones(8))
    wide = sinkhorn(scores.double(), epsilon, 3)
    # The scores themselves are only known to 6e-8, and are divided by epsilon.
    if epsilon > 1e-6:
        torch.testing.assert_close(q.double(), wide, rtol=1e-7 / epsilon, atol=1e-7 / epsilon)


def test_there_is_no_gradient() -> None:
    scores = _scores(4, 3, 0).requires_grad_()
    assert not sinkhorn(scores, 0.05, 3).requires_grad


def test_as_an_independent_implementation() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lightly = pytest.importorskip("lightly.loss.swav_loss")
    scores = _scores(16, 6, 0)
    for epsilon, iterations in ((0.05, 3), (0.2, 1), (0.03, 7)):
        theirs = lightly.sinkhorn(scores.clone(), iterations, epsilon)
        torch.testing.assert_close(sinkhorn(scores, epsilon, iterations), theirs)


@pytest.mark.parametrize("iterations", [1, 2, 3])
def test_what_is_added_to_each_sum(iterations: int) -> None:
    """As CAPI's authors compute it: no logarithms, the largest score of each prototype at e^50."""
    scores = 3 * torch.randn(
        40, 30, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    q = (scores / 0.06 - (scores / 0.06).amax(0) + 50).exp()
    for _ in range(iterations):
        q = q / (q.sum(0) + 1e-8)
        q = q / (q.sum(1, keepdim=True) + 1e-8)
    assert (
        q - sinkhorn(scores, 0.06, iterations)
    ).abs().max() > 0.1  # rows that sum to less than 1
    ours = sinkhorn(scores, 0.06, iterations, added=1e-8)
    torch.testing.assert_close(ours, q, rtol=1e-9, atol=1e-12)


# ---- several ranks


def _on_this_rank(counted: bool) -> Tensor:
    share = _scores(8, 3, 5).chunk(world_size())[rank()]
    mask = _mask().chunk(world_size())[rank()] if counted else None
    return sinkhorn(share, 0.1, 3, counted=mask)


def _mask() -> Tensor:
    return torch.tensor([True, False, True, True, False, True, True, True])


def _in_evaluation() -> Tensor:
    """Shares of different size, as test sets are dealt out."""
    sizes = [1, 3, 2, 2] if world_size() == 4 else [3, 5]
    with torch.no_grad():
        return sinkhorn(_scores(8, 3, 5).split(sizes)[rank()], 0.1, 3)


def _with_nothing_on_some() -> Tensor:
    """No rows on rank 0, and on rank 2 of four."""
    sizes = [0, 3, 0, 5] if world_size() == 4 else [0, 8]
    return sinkhorn(_scores(8, 3, 5).split(sizes)[rank()], 0.1, 3)


@pytest.mark.parametrize("pool", [2, 4], indirect=True)
def test_ranks_together_assign_the_whole_batch(pool: RankPool) -> None:
    scores = _scores(8, 3, 5).tolist()
    whole = by_the_paper(scores, 0.1, 3)
    masked = by_the_paper(scores, 0.1, 3, counted=_mask().tolist())
    for function, arguments, expected in (
        (_on_this_rank, (False,), whole),
        (_on_this_rank, (True,), masked),
        (_in_evaluation, (), whole),
        (_with_nothing_on_some, (), whole),
    ):
        ours = torch.cat(pool.run(function, *arguments))
        torch.testing.assert_close(ours, expected, rtol=1e-10, atol=1e-12)
