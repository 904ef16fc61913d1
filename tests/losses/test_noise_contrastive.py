"""Noise-contrastive estimation against equations 4 to 8 of Wu et al., term by term."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from sslengine.methods.memory_bank import estimate_log_partition, noise_contrastive


def equations_6_and_7(positives: Tensor, negatives: Tensor, z: float, n: int) -> Tensor:
    m = negatives.shape[1]

    def h(score: Tensor) -> Tensor:
        p = torch.exp(score) / z
        return p / (p + m / n)

    return torch.stack(
        [
            -torch.log(h(positive)) - sum(torch.log(1 - h(score)) for score in row)
            for positive, row in zip(positives, negatives, strict=True)
        ]
    )


@given(
    anchors=st.integers(1, 6),
    drawn=st.integers(1, 9),
    n=st.integers(1, 100_000),
    z=st.sampled_from([0.3, 1.0, 50.0, 1e5]),
    seed=st.integers(0, 10_000),
)
def test_value_and_gradient(anchors: int, drawn: int, n: int, z: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    scores = 3 * torch.randn(anchors, 1 + drawn, generator=generator, dtype=torch.float64)
    ours, theirs = scores.clone().requires_grad_(), scores.clone().requires_grad_()
    log_z = torch.tensor(math.log(z), dtype=torch.float64)
    losses = noise_contrastive(ours[:, 0], ours[:, 1:], log_z, n)
    expected = equations_6_and_7(theirs[:, 0], theirs[:, 1:], z, n)
    losses.sum().backward()
    expected.sum().backward()
    torch.testing.assert_close(losses, expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-8, atol=1e-9)


@given(st.integers(1, 5), st.integers(1, 7), st.integers(1, 1000), st.integers(0, 10_000))
def test_the_partition_function_is_equation_8(anchors: int, drawn: int, n: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(anchors, drawn, generator=generator, dtype=torch.float64)
    of_each = [n / drawn * sum(math.exp(score) for score in row) for row in scores.tolist()]
    expected = math.log(sum(of_each) / anchors)
    assert estimate_log_partition(scores, n).item() == pytest.approx(expected, abs=1e-12)


def test_single_precision_stays_finite_at_extreme_scores() -> None:
    """At a temperature of 5e-4 scores reach 2000, and exp(2000) no float holds."""
    positives = torch.tensor([2000.0, -2000.0], requires_grad=True)
    negatives = torch.tensor([[-2000.0, 2000.0], [2000.0, 2000.0]], requires_grad=True)
    log_z = estimate_log_partition(negatives.detach(), 1000)
    losses = noise_contrastive(positives, negatives, log_z, 1000)
    losses.sum().backward()
    assert torch.isfinite(losses).all()
    assert torch.isfinite(positives.grad).all()
    assert torch.isfinite(negatives.grad).all()
