"""Covariances and cross-correlations over ranks, and the Gram matrices of patches."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from sslengine.distributed.ranks import rank
from sslengine.losses.cross_correlation import (
    centred,
    covariance,
    cross_correlation,
    off_diagonal,
)
from sslengine.methods.dinov3 import gram_anchoring
from tests.ranks import RankPool


def _views(images: int, dim: int, seed: int = 0, offset: float = 0.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, images, dim, generator=generator, dtype=torch.float64) + offset


shapes = given(images=st.integers(2, 9), dim=st.integers(1, 9), seed=st.integers(0, 10_000))


@shapes
def test_covariance_is_numpys(images: int, dim: int, seed: int) -> None:
    views = _views(images, dim, seed, offset=3.0)
    expected = [np.cov(view.numpy(), rowvar=False).reshape(dim, dim) for view in views]
    found = covariance(views)
    torch.testing.assert_close(found, torch.from_numpy(np.stack(expected)), rtol=1e-9, atol=1e-12)


@given(images=st.integers(3, 9), dim=st.integers(1, 9), seed=st.integers(0, 10_000))
def test_cross_correlation_is_numpys(images: int, dim: int, seed: int) -> None:
    views = _views(images, dim, seed, offset=3.0)
    both = np.corrcoef(views[0].numpy(), views[1].numpy(), rowvar=False)
    expected = torch.from_numpy(both[:dim, dim:].copy())
    torch.testing.assert_close(cross_correlation(views, eps=1e-15), expected, rtol=1e-9, atol=1e-12)


def test_rows_and_columns_are_the_dimensions_of_the_first_and_the_second_view() -> None:
    first = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [1.0, 1.0], [-1.0, -1.0]])
    second = first.flip(1)
    found = cross_correlation(torch.stack([first, second]), eps=1e-15)
    # Dimension 0 of the first view is dimension 1 of the second.
    assert found[0, 1].item() == pytest.approx(1.0)
    assert found[1, 0].item() == pytest.approx(1.0)
    assert found[0, 0].item() == pytest.approx(0.5**0.5)


def test_a_dimension_that_does_not_vary_correlates_with_nothing() -> None:
    views = _views(6, 3)
    views[:, :, 1] = 7.0
    views.requires_grad_()
    found = cross_correlation(views, eps=1e-5)
    assert found[1].abs().max() < 1e-9
    assert found[:, 1].abs().max() < 1e-9
    found.square().sum().backward()
    assert views.grad.isfinite().all()


def test_one_image_alone_has_no_statistics() -> None:
    views = _views(1, 3).requires_grad_()
    total = covariance(views).square().sum() + cross_correlation(views, eps=1e-5).square().sum()
    total.backward()
    assert total.item() == 0
    assert torch.equal(views.grad, torch.zeros_like(views))


def test_in_single_precision_a_large_mean_costs_no_digits() -> None:
    """Means are taken away before anything is squared."""
    views = _views(64, 4).float()
    torch.testing.assert_close(covariance(views + 300), covariance(views), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("width", [1, 2, 3, 6])
def test_off_diagonal_takes_all_entries_but_those_on_the_diagonal(width: int) -> None:
    matrices = torch.arange(2 * width * width).view(2, width, width)
    for matrix, found in zip(matrices, off_diagonal(matrices), strict=True):
        expected = [matrix[i, j] for i in range(width) for j in range(width) if i != j]
        assert found.flatten().tolist() == [int(each) for each in expected]
    assert off_diagonal(matrices[0]).shape == (width - 1, width)


def test_off_diagonal_of_a_matrix_alone_is_a_view() -> None:
    matrix = torch.zeros(3, 3)
    off_diagonal(matrix)[:] = 1
    assert torch.equal(matrix, 1 - torch.eye(3))


# ---- several ranks

EVEN, UNEVEN = ((0, 4), (4, 8)), ((0, 5), (5, 8))


def _share(bounds: tuple[tuple[int, int], ...]) -> Tensor:
    start, stop = bounds[rank()]
    # Ranks differ in mean and spread: statistics of one of them are far from those of all.
    place = torch.arange(8, dtype=torch.float64).view(1, -1, 1)
    return (_views(8, 3) * (1 + place) + place)[:, start:stop]


def _statistics(bounds: tuple[tuple[int, int], ...], grad: bool) -> dict[str, Tensor]:
    with torch.set_grad_enabled(grad):
        views = _share(bounds).requires_grad_(grad)
        results = {
            "covariance": covariance(views),
            "correlation": cross_correlation(views, eps=1e-5),
            "count": centred(views)[1],
        }
        if grad:
            matrices = torch.cat([results["covariance"].flatten(0, 1), results["correlation"]])
            (matrices[:, :2].pow(3).sum() * (rank() + 1)).backward()
            results["grad"] = views.grad
    return {name: each.detach() for name, each in results.items()}


@pytest.mark.parametrize(("bounds", "grad"), [(EVEN, True), (UNEVEN, True), (UNEVEN, False)])
def test_ranks_see_the_statistics_of_all_images(
    two_ranks: RankPool, bounds: tuple[tuple[int, int], ...], grad: bool
) -> None:
    whole = _statistics(((0, 8),), grad)
    first, second = two_ranks.run(_statistics, bounds, grad)
    for name in ("covariance", "correlation", "count"):
        assert torch.equal(first[name], second[name])
        torch.testing.assert_close(first[name], whole[name], rtol=1e-10, atol=1e-10)
    if grad:
        # Rank 1 counts double: each embedding gets what both ranks' losses ask of it, 1 + 2.
        found = torch.cat([first["grad"], second["grad"]], dim=1)
        torch.testing.assert_close(found, 3 * whole["grad"], rtol=1e-9, atol=1e-9)


# ---- gram


def test_value_and_gradient_by_the_formula() -> None:
    torch.manual_seed(0)
    student = torch.randn(2, 3, 5, dtype=torch.float64, requires_grad=True)
    teacher = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    total = torch.zeros((), dtype=torch.float64)
    for ours, theirs in zip(student, teacher.detach(), strict=True):
        for i in range(3):
            for j in range(3):
                cosines = [
                    row[i] @ row[j] / (row[i].norm() * row[j].norm()) for row in (ours, theirs)
                ]
                total = total + (cosines[0] - cosines[1]) ** 2 / (2 * 3 * 3)
    found = gram_anchoring(student, teacher)
    torch.testing.assert_close(found, total)
    torch.testing.assert_close(
        torch.autograd.grad(found, student), torch.autograd.grad(total, student)
    )
    assert not found.requires_grad or teacher.grad is None
    assert gram_anchoring(student, student.detach() * 3) < 1e-20
