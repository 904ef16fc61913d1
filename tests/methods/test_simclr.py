"""SimCLR against equation 1 of the paper, at 1, 2 and 4 ranks."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import sslengine as ssl
from sslengine.config.facts import RunFacts
from sslengine.distributed.ranks import rank, world_size
from sslengine.errors import TrainingError
from sslengine.losses import info_nce
from sslengine.methods.simclr import (
    MultiCropSimCLRLoss,
    MultiCropSimCLROptions,
    SimCLRLoss,
    SimCLROptions,
)
from tests.ranks import RankPool


def equation_1(view_0: Tensor, view_1: Tensor, temperature: float) -> Tensor:
    """The paper's loss, pair by pair: z_2k-1 and z_2k are the views of image k."""
    z = [row for pair in zip(view_0, view_1, strict=True) for row in pair]

    def sim(i: int, j: int) -> Tensor:
        return z[i] @ z[j] / (z[i].norm() * z[j].norm())

    def ell(i: int, j: int) -> Tensor:
        others = torch.stack([sim(i, k) / temperature for k in range(len(z)) if k != i])
        return torch.logsumexp(others, 0) - sim(i, j) / temperature

    pairs = range(0, len(z), 2)
    return sum(ell(k, k + 1) + ell(k + 1, k) for k in pairs) / len(z)


def over_crops(crops: Tensor, temperature: float) -> Tensor:
    """The appendix of SwAV: crops (V, B, D), positive by positive; negatives: other images."""
    total = torch.zeros((), dtype=torch.float64)
    unit = [[z / z.norm() for z in crop] for crop in crops]
    views, images = len(crops), len(crops[0])
    for v in range(views):
        for b in range(images):
            against = [
                unit[v][b] @ z for w in range(views) for a, z in enumerate(unit[w]) if a != b
            ]
            for other in range(views):
                if other != v:
                    positive = unit[v][b] @ unit[other][b]
                    terms = torch.stack([positive, *against]) / temperature
                    total = total + torch.logsumexp(terms, 0) - positive / temperature
    return total / (views * images * (views - 1))


def _multicrop(temperature: float, crops: int) -> MultiCropSimCLRLoss:
    return MultiCropSimCLRLoss(MultiCropSimCLROptions(temperature, num_crops=crops), RunFacts())


def _loss(temperature: float) -> SimCLRLoss:
    return SimCLRLoss(SimCLROptions(temperature=temperature), RunFacts())


def _embeddings(images: int, dim: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2 * images, dim, generator=generator, dtype=torch.float64)


@given(
    images=st.integers(1, 9),
    dim=st.integers(1, 17),
    temperature=st.sampled_from([1e-3, 0.05, 0.1, 0.5, 1.0, 50.0]),
    seed=st.integers(0, 10_000),
)
def test_value_and_gradient(images: int, dim: int, temperature: float, seed: int) -> None:
    ours = _embeddings(images, dim, seed).requires_grad_()
    theirs = ours.detach().clone().requires_grad_()
    loss = _loss(temperature)(ours)
    expected = equation_1(theirs[:images], theirs[images:], temperature)
    loss.backward()
    expected.backward()
    torch.testing.assert_close(loss, expected, rtol=1e-9, atol=1e-9)
    rounding = 1e-13 / temperature  # similarities are divided by it, and their rounding too
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-7, atol=rounding)


@given(
    crops=st.integers(2, 5),
    images=st.integers(1, 4),
    dim=st.integers(1, 9),
    temperature=st.sampled_from([1e-3, 0.1, 50.0]),
    tied=st.booleans(),
    seed=st.integers(0, 10_000),
)
def test_value_and_gradient_over_crops(
    crops: int, images: int, dim: int, temperature: float, tied: bool, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    ours = torch.randn(crops, images, dim, generator=generator, dtype=torch.float64)
    if tied:
        ours[1:] = ours[:1]
    theirs = ours.clone().requires_grad_()
    ours.requires_grad_()
    loss = _multicrop(temperature, crops)(ours.flatten(0, 1))
    expected = over_crops(theirs, temperature)
    loss.backward()
    expected.backward()
    torch.testing.assert_close(loss, expected, rtol=1e-9, atol=1e-9)
    rounding = 1e-13 / temperature * (1 / ours.detach().norm(dim=2).min().clamp(max=1)).item()
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-7, atol=rounding)


def test_two_crops_are_two_views() -> None:
    embeddings = _embeddings(5, 7, 0)
    torch.testing.assert_close(_multicrop(0.1, 2)(embeddings), _loss(0.1)(embeddings))


def test_one_image_alone_has_nothing_to_tell_apart() -> None:
    assert _loss(0.1)(_embeddings(1, 8, 0)).item() == pytest.approx(0.0, abs=1e-12)


def test_single_precision_stays_finite_at_a_tiny_temperature() -> None:
    embeddings = _embeddings(16, 8, 0).float().requires_grad_()
    loss = _loss(5e-4)(embeddings)
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(embeddings.grad).all()


# ---- several ranks: a linear model under DDP, each rank with its share of the images

IMAGES, PIXELS = 8, 5


def _views() -> Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(2, IMAGES, PIXELS, generator=generator, dtype=torch.float64)


def _model() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(PIXELS, 4).double()


def _on_this_rank(small: int, at_once: int) -> tuple[float, Tensor, Tensor]:
    """(loss, the gradient that DDP leaves, this rank's own gradient divided by the ranks)"""
    usual = info_nce.SMALL, info_nce.BLOCK
    info_nce.SMALL, info_nce.BLOCK = small, at_once
    try:
        return _steps_of_this_rank()
    finally:
        info_nce.SMALL, info_nce.BLOCK = usual


def _steps_of_this_rank() -> tuple[float, Tensor, Tensor]:
    share = _views().chunk(world_size(), dim=1)[rank()].reshape(-1, PIXELS)
    plain = _model()
    loss = _loss(0.2)(plain(share))
    loss.backward()
    wrapped = DistributedDataParallel(_model())
    _loss(0.2)(wrapped(share)).backward()
    return loss.item(), wrapped.module.weight.grad, plain.weight.grad / world_size()


@pytest.mark.parametrize(
    "sizes",
    [(info_nce.SMALL, 0), (0, info_nce.BLOCK), (0, 3 * 2 * IMAGES)],
    ids=["small", "whole", "3 rows"],
)
@pytest.mark.parametrize("pool", [2, 4], indirect=True)
def test_ranks_together_equal_one_process_with_the_whole_batch(
    pool: RankPool, sizes: tuple[int, int]
) -> None:
    model = _model()
    embeddings = model(_views().reshape(-1, PIXELS))
    expected = equation_1(embeddings[:IMAGES], embeddings[IMAGES:], 0.2)
    expected.backward()
    results = pool.run(_on_this_rank, *sizes)
    assert sum(loss for loss, _, _ in results) / pool.world_size == pytest.approx(
        expected.item(), rel=1e-12
    )
    for _, by_ddp, _ in results:
        torch.testing.assert_close(by_ddp, model.weight.grad, rtol=1e-9, atol=1e-12)
    summed = torch.stack([share for _, _, share in results]).sum(dim=0)
    torch.testing.assert_close(summed, model.weight.grad, rtol=1e-9, atol=1e-12)


def _by_toolbox(output: Tensor) -> Tensor:
    """The loss of a method that owns its network: rows are views x images x width."""
    z = F.normalize(output, dim=1).unflatten(0, (5, -1))
    everyone, start = ssl.gather(z, dim=1)
    return ssl.info_nce(z, everyone, start, 0.2)


def _over_crops_on_this_rank(toolbox: bool) -> tuple[float, Tensor]:
    images = torch.stack([*_views(), *_views().flip(2), _views()[0].roll(1, dims=1)])
    share = images.chunk(world_size(), dim=1)[rank()].reshape(-1, PIXELS)
    wrapped = DistributedDataParallel(_model()) if world_size() > 1 else _model()
    loss = (_by_toolbox if toolbox else _multicrop(0.2, 5))(wrapped(share))
    loss.backward()
    return loss.item(), next(wrapped.parameters()).grad


@pytest.mark.parametrize("toolbox", [False, True])
@pytest.mark.parametrize("pool", [2, 4], indirect=True)
def test_ranks_together_equal_one_process_over_crops(pool: RankPool, toolbox: bool) -> None:
    expected, gradient = _over_crops_on_this_rank(False)
    results = pool.run(_over_crops_on_this_rank, toolbox)
    assert sum(loss for loss, _ in results) / pool.world_size == pytest.approx(expected, rel=1e-12)
    for _, by_ddp in results:
        torch.testing.assert_close(by_ddp, gradient, rtol=1e-9, atol=1e-12)


# ---- what a user can get wrong


def test_crops_follow_the_run() -> None:
    options = MultiCropSimCLROptions()
    facts = RunFacts(4, batch_size_per_replica=8, views_per_image=6, collator="multicrop_collator")
    options.infer(facts)
    assert options.num_crops == 6
    with pytest.raises(TrainingError, match="6 views of every image"):
        _multicrop(0.1, 6)(torch.ones(8, 4))
