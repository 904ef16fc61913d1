"""Barlow Twins against equations 1 and 2 of the paper, at 1, 2 and 4 ranks."""

from __future__ import annotations

import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from sslengine.config.facts import RunFacts
from sslengine.methods.barlow_twins import BarlowTwinsLoss, BarlowTwinsOptions
from tests.methods.multi_rank import assert_ranks_equal_one_process
from tests.ranks import RankPool


def equations_1_and_2(
    view_a: Tensor, view_b: Tensor, lambda_: float, scale: float, eps: float = 1e-5
) -> Tensor:
    """Entry by entry; eps in the roots is that of the authors' batch norm, 0 in the paper."""
    images, dims = view_a.shape
    a = [column - column.sum() / images for column in view_a.T]
    b = [column - column.sum() / images for column in view_b.T]

    def length(z: Tensor) -> Tensor:
        return (sum(each**2 for each in z) + images * eps).sqrt()

    total = torch.zeros((), dtype=torch.float64)
    for i in range(dims):
        for j in range(dims):
            c = sum(x * y for x, y in zip(a[i], b[j], strict=True)) / (length(a[i]) * length(b[j]))
            total = total + ((1 - c) ** 2 if i == j else lambda_ * c**2)
    return scale * total


def deviations_of(embeddings: Tensor, eps: float = 1e-5) -> Tensor:
    views = embeddings.detach().unflatten(0, (2, -1))
    return (views.var(dim=1, correction=0) + eps).sqrt()


def _loss(lambda_: float = 0.0051, scale_loss: float = 0.024) -> BarlowTwinsLoss:
    return BarlowTwinsLoss(BarlowTwinsOptions(lambda_, scale_loss), RunFacts())


def _embeddings(images: int, dim: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2 * images, dim, generator=generator, dtype=torch.float64) + 0.5


@given(
    images=st.integers(1, 7),
    dim=st.integers(1, 6),
    lambda_=st.sampled_from([0.0, 0.0051, 0.5, 100.0]),
    spread=st.sampled_from([1e-3, 1.0, 1e4]),
    tied=st.booleans(),
    seed=st.integers(0, 10_000),
)
def test_value_and_gradient(
    images: int, dim: int, lambda_: float, spread: float, tied: bool, seed: int
) -> None:
    ours = spread * _embeddings(images, dim, seed)
    if tied:
        ours[1:images] = ours[:1]  # of one view all images look alike
    theirs = ours.clone().requires_grad_()
    ours.requires_grad_()
    loss = _loss(lambda_, 0.3)(ours)
    expected = equations_1_and_2(theirs[:images], theirs[images:], lambda_, 0.3)
    loss.backward()
    expected.backward()
    torch.testing.assert_close(loss, expected, rtol=1e-9, atol=1e-9)
    # At the optimum the gradient cancels down to the rounding of c, divided by the deviation.
    steepest = theirs.grad.abs().max().item()
    rounding = 1e-13 * (1 + lambda_) / deviations_of(theirs).min().item()
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-7, atol=1e-9 * steepest + rounding)


def test_but_for_eps_it_is_the_papers_loss() -> None:
    """eps counts as much as variances are small: here they are about 1e6."""
    views = 1e3 * _embeddings(16, 4, seed=0)
    expected = equations_1_and_2(views[:16], views[16:], 0.0051, 0.024, eps=0.0)
    assert _loss()(views).item() == pytest.approx(expected.item(), rel=1e-9)


def test_single_precision_is_near_double() -> None:
    embeddings = _embeddings(64, 32, seed=0)
    assert _loss()(embeddings.float()).item() == pytest.approx(_loss()(embeddings).item(), rel=1e-5)


def test_lightly_agrees() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lightly = pytest.importorskip("lightly.loss")
    embeddings = _embeddings(16, 6, seed=0).requires_grad_()
    theirs = lightly.BarlowTwinsLoss(lambda_param=0.2)(embeddings[:16], embeddings[16:])
    (expected,) = torch.autograd.grad(theirs, embeddings)
    ours = _loss(0.2, 1.0)(embeddings)
    (found,) = torch.autograd.grad(ours, embeddings)
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=0)
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-10)


# ---- several ranks


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_together_make_the_loss_and_gradient_of_one_process(
    ranks: int, two_ranks: RankPool, four_ranks: RankPool
) -> None:
    """In particular the gradient is not over the number of ranks, as VISSL's is."""
    pool = two_ranks if ranks == 2 else four_ranks
    assert_ranks_equal_one_process(
        pool, _loss(0.5, 2.0), lambda a, b: equations_1_and_2(a, b, 0.5, 2.0)
    )


# ---- through the engine


# ---- what a user can get wrong
