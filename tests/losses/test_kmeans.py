"""Spherical k-means against a loop over points and against scikit-learn, at 1, 2 and 4 ranks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.cluster import KMeans
from torch import Tensor
from torch.nn import functional as F

from sslengine.distributed.ranks import rank, world_size
from sslengine.losses import kmeans
from sslengine.losses.kmeans import Clusters, spherical_kmeans
from tests.ranks import RankPool
from tests.tail import slow_but


def point_by_point(points: Tensor, centroids: Tensor, iterations: int) -> Clusters:
    """The rules of the module, one point and one centroid after the other."""
    centroids = centroids.clone()

    def nearest(point: Tensor) -> int:
        products = [sum(a * b for a, b in zip(point, c, strict=True)) for c in centroids.tolist()]
        return products.index(max(products))

    def assign() -> list[int]:
        return [nearest(point) for point in points.tolist()]

    for _ in range(iterations):
        assignments = assign()
        for k in range(len(centroids)):
            members = [p for p, a in zip(points, assignments, strict=True) if a == k]
            total = sum(members) if members else torch.zeros_like(centroids[k])
            if total.norm() > 0:
                centroids[k] = total / total.norm()
    return Clusters(centroids, torch.tensor(assign()))


def _points(number: int, dim: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return F.normalize(torch.randn(number, dim, generator=generator, dtype=torch.float64), dim=1)


@given(
    number=st.integers(1, 30),
    dim=st.integers(2, 6),
    clusters=st.integers(1, 12),
    iterations=st.integers(0, 4),
    seed=st.integers(0, 10_000),
)
def test_equals_the_loop(number: int, dim: int, clusters: int, iterations: int, seed: int) -> None:
    points, start = _points(number, dim, seed), _points(clusters, dim, seed + 1)
    ours = spherical_kmeans(points, start, iterations)
    expected = point_by_point(points, start, iterations)
    assert torch.equal(ours.assignments, expected.assignments)
    torch.testing.assert_close(ours.centroids, expected.centroids, rtol=1e-10, atol=1e-10)


def test_points_that_are_compared_in_parts_give_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    points, start = _points(50, 4, 0), _points(7, 4, 1)
    whole = spherical_kmeans(points, start, 5)
    monkeypatch.setattr(kmeans, "BLOCK", 30)  # four points at a time
    parts = spherical_kmeans(points, start, 5)
    assert torch.equal(parts.assignments, whole.assignments)
    torch.testing.assert_close(parts.centroids, whole.centroids, rtol=1e-12, atol=1e-12)


def test_a_cluster_without_points_or_whose_points_cancel_stays() -> None:
    points = torch.tensor([[1.0, 0.0, 0.0], [-1.0, 0.0, 0.0]])
    start = torch.tensor([[0.0, 1.0, 0.0], [0.0, -1.0, 0.0]])
    found = spherical_kmeans(points, start, 3)
    assert found.assignments.tolist() == [0, 0]  # all equal: the lowest number
    assert torch.equal(found.centroids, start)


def test_the_start_is_not_written_to() -> None:
    start = _points(3, 4, 1)
    kept = start.clone()
    spherical_kmeans(_points(20, 4, 0), start, 3)
    assert torch.equal(start, kept)


def test_separated_blobs_as_scikit_learn_finds_them() -> None:
    centres = F.normalize(torch.eye(6, dtype=torch.float64)[:5] + 0.1, dim=1)
    noise = 0.1 * _points(200, 6, 2)
    truth = torch.arange(200) % 5
    points = F.normalize(centres[truth] + noise, dim=1)
    start = points[:5]  # one of each
    ours = spherical_kmeans(points, start, 10)
    theirs = KMeans(5, init=start.numpy(), n_init=1, max_iter=10).fit(points.numpy())
    assert np.array_equal(ours.assignments.numpy(), theirs.labels_)
    assert torch.equal(ours.assignments, truth)
    expected = F.normalize(torch.from_numpy(theirs.cluster_centers_), dim=1)
    torch.testing.assert_close(ours.centroids, expected, rtol=1e-9, atol=1e-9)


def _on_this_rank(dtype: torch.dtype) -> Clusters:
    """41 points: ranks cannot share them evenly."""
    points, start = _points(41, 5, 3).to(dtype), _points(9, 5, 4).to(dtype)
    return spherical_kmeans(points.tensor_split(world_size())[rank()], start, 6)


@pytest.mark.parametrize("pool", slow_but([2], [2, 4]), indirect=True)
def test_ranks_together_equal_one_with_all_points(pool: RankPool) -> None:
    expected = point_by_point(_points(41, 5, 3), _points(9, 5, 4), 6)
    results = pool.run(_on_this_rank, torch.float64)
    assert torch.equal(torch.cat([each.assignments for each in results]), expected.assignments)
    for each in results:
        torch.testing.assert_close(each.centroids, expected.centroids, rtol=1e-10, atol=1e-10)
    in_single = pool.run(_on_this_rank, torch.float32)
    assert all(torch.equal(each.centroids, in_single[0].centroids) for each in in_single)
