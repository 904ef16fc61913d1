"""info-NCE against the formula written out in float64, entry by entry."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from sslengine.losses import info_nce as module
from tests.largest import Largest


def info_nce(
    anchors: Tensor, candidates: Tensor, positives: Tensor, temperature: float,
    excluded: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Of one pair."""
    return module.info_nce(anchors, candidates, [(positives, excluded)], temperature)


@pytest.fixture(params=[module.SMALL, 0], ids=["small", "large"], autouse=True)
def _both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """By torch's own operations, and some anchors at a time."""
    monkeypatch.setattr(module, "SMALL", request.param)


def _by_the_formula(
    anchors: Tensor, candidates: Tensor, positives: list[int], temperature: float,
    excluded: list[int] | None,
) -> float:  # fmt: skip
    total = 0.0
    for i, anchor in enumerate(anchors.tolist()):
        terms = []
        for k, candidate in enumerate(candidates.tolist()):
            if excluded is None or k != excluded[i]:
                terms.append((k, sum(a * c for a, c in zip(anchor, candidate)) / temperature))
        largest = max(value for _, value in terms)
        log_sum = largest + math.log(sum(math.exp(value - largest) for _, value in terms))
        total += log_sum - dict(terms)[positives[i]]
    return total / len(anchors)


def _unit(rows: int, dim: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return F.normalize(torch.randn(rows, dim, generator=generator, dtype=torch.float64), dim=1)


@pytest.mark.parametrize("temperature", [1e-3, 0.1, 1.0, 100.0])
@pytest.mark.parametrize(("rows", "columns", "dim"), [(1, 2, 1), (3, 7, 5), (6, 6, 16)])
@pytest.mark.parametrize("exclude", [False, True])
def test_value(temperature: float, rows: int, columns: int, dim: int, exclude: bool) -> None:
    anchors, candidates = _unit(rows, dim, 0), _unit(columns, dim, 1)
    positives = [(i + 1) % columns for i in range(rows)]
    excluded = list(range(rows)) if exclude else None
    loss = info_nce(
        anchors, candidates, torch.tensor(positives), temperature,
        None if excluded is None else torch.tensor(excluded)[:, None],
    )  # fmt: skip
    expected = _by_the_formula(anchors, candidates, positives, temperature, excluded)
    assert loss.item() == pytest.approx(expected, rel=1e-10, abs=1e-12)


def test_several_candidates_that_do_not_count() -> None:
    anchors, candidates = _unit(3, 4, 0), _unit(5, 4, 1)
    positives, excluded = torch.tensor([1, 2, 0]), torch.tensor([[0, 3], [0, 3], [4, 3]])
    loss = info_nce(anchors, candidates, positives, 0.1, excluded)
    left = [(0, [1, 2, 4], 0), (1, [1, 2, 4], 1), (2, [0, 1, 2], 0)]
    expected = [
        info_nce(anchors[row : row + 1], candidates[columns], torch.tensor([positive]), 0.1)
        for row, columns, positive in left
    ]
    torch.testing.assert_close(loss, torch.stack(expected).mean())


def test_several_pairs_are_averaged() -> None:
    anchors, candidates = _unit(3, 4, 0), _unit(5, 4, 1)
    pairs = [
        (torch.tensor([1, 2, 0]), torch.tensor([[0], [0], [4]])),
        (torch.tensor([3] * 3), None),
    ]
    expected = sum(info_nce(anchors, candidates, p, 0.1, excluded) for p, excluded in pairs) / 2
    torch.testing.assert_close(module.info_nce(anchors, candidates, pairs, 0.1), expected)


def test_gradient_by_finite_differences() -> None:
    anchors = _unit(3, 4, 0).requires_grad_()
    candidates = _unit(5, 4, 1).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda a, c: info_nce(a, c, torch.tensor([1, 2, 0]), 0.3, torch.tensor([[0], [1], [2]])),
        (anchors, candidates),
    )


def test_ties_cost_the_logarithm_of_their_number() -> None:
    same = torch.ones(4, 1, dtype=torch.float64)
    loss = info_nce(same, same, torch.tensor([1, 0, 3, 2]), 0.05, torch.arange(4)[:, None])
    assert loss.item() == pytest.approx(math.log(3))


def test_finite_in_single_precision_at_a_temperature_that_overflows_exp() -> None:
    anchors = _unit(8, 4, 0).float().requires_grad_()
    loss = info_nce(anchors, anchors, torch.arange(8).roll(4), 1e-4, torch.arange(8)[:, None])
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(anchors.grad).all()


# ---- some anchors at a time


def _plain(anchors: Tensor, candidates: Tensor, positives: Tensor, excluded: Tensor) -> Tensor:
    """The whole matrix, by torch's own operations and autograd."""
    logits = (anchors @ candidates.T / 0.1).scatter(1, excluded, float("-inf"))
    return F.cross_entropy(logits, positives)


@pytest.mark.parametrize("at_once", [1, 26, 53, 10**6], ids=["row by row", "2", "4", "all"])
def test_at_any_size_of_the_parts(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Value and gradient, where the number of anchors is no multiple of the size, too."""
    monkeypatch.setattr(module, "BLOCK", at_once)
    ours = _unit(7, 4, 0).requires_grad_(), _unit(13, 4, 1).requires_grad_()
    theirs = [each.detach().clone().requires_grad_() for each in ours]
    positives, excluded = torch.arange(7), torch.arange(14).view(7, 2) % 6 + 7
    loss = info_nce(*ours, positives, 0.1, excluded)
    expected = _plain(*theirs, positives, excluded)
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=1e-12)
    (3 * loss).backward()
    (3 * expected).backward()
    for mine, yours in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.grad, yours.grad, rtol=1e-10, atol=1e-12)


def test_the_matrix_is_never_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SMALL", 64 * 400 - 1)
    monkeypatch.setattr(module, "BLOCK", 2000)
    anchors, candidates = _unit(64, 4, 0).requires_grad_(), _unit(400, 4, 1).requires_grad_()
    with Largest() as made:
        info_nce(anchors, candidates, torch.arange(64), 0.1).backward()
    assert made.elements == 2000  # 5 anchors and all candidates; there are 25600 similarities
    assert anchors.grad is not None


def test_without_a_gradient_none_is_made() -> None:
    anchors, candidates = _unit(64, 4, 0), _unit(400, 4, 1)
    with torch.no_grad(), Largest() as made:
        loss = info_nce(anchors.requires_grad_(), candidates, torch.arange(64), 0.1)
    assert not loss.requires_grad
    assert made.elements == 64 * 400


def test_only_what_is_asked_for_gets_a_gradient() -> None:
    anchors, candidates = _unit(3, 4, 0).requires_grad_(), _unit(5, 4, 1)
    info_nce(anchors, candidates, torch.tensor([1, 2, 0]), 0.1).backward()
    assert anchors.grad is not None
    assert candidates.grad is None
