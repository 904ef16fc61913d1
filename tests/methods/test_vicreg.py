"""VICReg against the paper's equations, at 1, 2 and 4 ranks."""

from __future__ import annotations

import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from sslengine.config.facts import RunFacts
from sslengine.methods.vicreg import VICRegLoss, VICRegOptions
from tests.config.recipes import resolved
from tests.methods.multi_rank import assert_ranks_equal_one_process
from tests.ranks import RankPool


def s(z: Tensor, other: Tensor) -> Tensor:
    """Equation 5: the invariance."""
    return sum(((a - b) ** 2).sum() for a, b in zip(z, other, strict=True)) / len(z)


def variance(column: Tensor) -> Tensor:
    mean = sum(column) / len(column)
    return sum((each - mean) ** 2 for each in column) / (len(column) - 1)


def v(z: Tensor, gamma: float, eps: float) -> Tensor:
    """Equations 1 and 2: the hinge on the deviation of each dimension."""
    hinges = [torch.clamp(gamma - (variance(column) + eps).sqrt(), min=0) for column in z.T]
    return sum(hinges) / z.shape[1]


def c(z: Tensor) -> Tensor:
    """Equations 3 and 4: the covariances, squared, off the diagonal."""
    images, dims = z.shape
    mean = sum(z) / images
    matrix = sum(torch.outer(row - mean, row - mean) for row in z) / (images - 1)
    return sum(matrix[i, j] ** 2 for i in range(dims) for j in range(dims) if i != j) / dims + (
        0 * z.sum()  # of one dimension there is nothing to sum
    )


def equation_6(
    z: Tensor, other: Tensor, options: tuple[float, float, float], gamma: float, eps: float
) -> Tensor:
    lambda_, mu, nu = options
    return (
        lambda_ * s(z, other)
        + mu * (v(z, gamma, eps) + v(other, gamma, eps))
        + nu * (c(z) + c(other))
    )


def _loss(sim: float = 25.0, std: float = 25.0, cov: float = 1.0, **more: float) -> VICRegLoss:
    return VICRegLoss(VICRegOptions(sim, std, cov, **more), RunFacts())


def _embeddings(images: int, dim: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2 * images, dim, generator=generator, dtype=torch.float64) + 0.5


@given(
    images=st.integers(2, 7),
    dim=st.integers(1, 6),
    weights=st.sampled_from([(25.0, 25.0, 1.0), (0.0, 1.0, 0.0), (1.0, 0.0, 0.0), (0.1, 3.0, 7.0)]),
    gamma=st.sampled_from([0.3, 1.0, 4.0]),
    eps=st.sampled_from([1e-8, 1e-4, 0.5]),
    spread=st.sampled_from([1e-2, 1.0, 1e2]),
    tied=st.booleans(),
    seed=st.integers(0, 10_000),
)
def test_value_and_gradient(
    images: int,
    dim: int,
    weights: tuple[float, float, float],
    gamma: float,
    eps: float,
    spread: float,
    tied: bool,
    seed: int,
) -> None:
    """Equation 6; the published coefficients are those of its terms as the authors' code has them."""
    ours = spread * _embeddings(images, dim, seed)
    if tied:
        ours[1:images] = ours[:1]  # of one view all images look alike
    theirs = ours.clone().requires_grad_()
    ours.requires_grad_()
    lambda_, mu, nu = weights
    loss = _loss(dim * lambda_, 2 * mu, nu, gamma=gamma, eps=eps)(ours)["loss"]
    expected = equation_6(theirs[:images], theirs[images:], weights, gamma, eps)
    loss.backward()
    expected.backward()
    torch.testing.assert_close(loss, expected, rtol=1e-9, atol=1e-9)
    steepest = theirs.grad.abs().max().item()
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-7, atol=1e-9 * steepest)


def test_the_parts_are_the_terms_before_they_are_weighted() -> None:
    embeddings = _embeddings(5, 3, seed=1)
    z, other = embeddings[:5], embeddings[5:]
    parts = {name: value.item() for name, value in _loss()(embeddings).items()}
    assert parts == pytest.approx(
        {"invariance": s(z, other).item() / 3,
         "variance": (v(z, 1.0, 1e-4) + v(other, 1.0, 1e-4)).item() / 2,
         "covariance": (c(z) + c(other)).item(),
         "loss": 25 * parts["invariance"] + 25 * parts["variance"] + parts["covariance"]},
        rel=1e-9,
    )  # fmt: skip


def test_one_image_alone_is_finite() -> None:
    """The last batch of a test phase may be as small."""
    loss = _loss()(torch.randn(2, 4))
    assert all(value.isfinite() for value in loss.values())
    assert (loss["variance"].item(), loss["covariance"].item()) == (pytest.approx(0.99), 0.0)


def test_single_precision_is_near_double() -> None:
    embeddings = _embeddings(64, 32, seed=0)
    single, double = _loss()(embeddings.float()), _loss()(embeddings)
    for name, value in single.items():
        assert value.item() == pytest.approx(double[name].item(), rel=1e-5)


def test_lightly_agrees() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lightly = pytest.importorskip("lightly.loss")
    embeddings = _embeddings(16, 6, seed=0).requires_grad_()
    theirs = lightly.VICRegLoss(3.0, 5.0, 7.0, eps=1e-3)(embeddings[:16], embeddings[16:])
    (expected,) = torch.autograd.grad(theirs, embeddings)
    ours = _loss(3.0, 5.0, 7.0, eps=1e-3)(embeddings)["loss"]
    (found,) = torch.autograd.grad(ours, embeddings)
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=0)
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-10)


# ---- several ranks


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_together_make_the_loss_and_gradient_of_one_process(
    ranks: int, two_ranks: RankPool, four_ranks: RankPool
) -> None:
    """gamma is so large that the hinge is open: the variance term has a gradient."""
    pool = two_ranks if ranks == 2 else four_ranks
    assert_ranks_equal_one_process(
        pool,
        _loss(4 * 3.0, 2 * 5.0, 7.0, gamma=9.0),  # 4: the width of the embedding
        lambda a, b: equation_6(a, b, (3.0, 5.0, 7.0), gamma=9.0, eps=1e-4),
    )


# ---- through the engine

RUN = {"LOSS": {"name": "vicreg_loss"}, "OPTIMIZER__param_schedulers__lr__start_value": 0.001}


# ---- what a user can get wrong


def test_the_published_numbers_are_the_defaults() -> None:
    options = resolved(**RUN).config.LOSS.vicreg_loss
    assert (options.sim_coeff, options.std_coeff, options.cov_coeff) == (25.0, 25.0, 1.0)
    assert (options.gamma, options.eps) == (1.0, 1e-4)
