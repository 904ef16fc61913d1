"""LiDAR, alignment, uniformity and consistency, against scipy, scikit-learn and the papers' formulas."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg
import torch
from numpy.typing import NDArray
from scipy.spatial.distance import cdist, pdist
from sklearn.neighbors import NearestNeighbors

from sslengine.evaluate import knn as search
from sslengine.evaluate.label_free.geometry import (
    alignment,
    checkpoint_consistency,
    uniformity,
    view_consistency,
)
from sslengine.evaluate.label_free.spectrum import lidar

Array = NDArray[np.float64]


def views(images: int = 40, count: int = 6, width: int = 8, noise: float = 0.3) -> Array:
    draw = np.random.default_rng(0)
    scales = np.linspace(0.2, 2, width)
    return draw.normal(size=(images, 1, width)) * scales + noise * draw.normal(
        size=(images, count, width)
    )


def exp_entropy(values: Array) -> float:
    p = values / values.sum() + 1e-7
    return float(np.exp(-(p * np.log(p)).sum()))


def covariances(e: Array) -> tuple[Array, Array]:
    """Between images, and within them; written out."""
    n, q, width = e.shape
    between, within = np.zeros((width, width)), np.zeros((width, width))
    means = [sum(e[i]) / q for i in range(n)]
    mean = sum(means) / n
    for i in range(n):
        between += np.outer(means[i] - mean, means[i] - mean) / (n - 1)
        for j in range(q):
            within += np.outer(e[i, j] - means[i], e[i, j] - means[i]) / (n * (q - 1))
    return between, within + 1e-4 * np.eye(width)


def test_lidar_as_scipy_solves_it() -> None:
    e = views()
    between, within = covariances(e)
    values = scipy.linalg.eigh(between, within, eigvals_only=True)
    found = lidar(torch.from_numpy(e))
    assert found.value == pytest.approx(exp_entropy(values), rel=1e-9)
    assert found.n == 40


def test_lidar_of_known_dimensions() -> None:
    """Images differ in 5 of 20 dimensions, augmentations in all: only RankMe sees 20."""
    draw = np.random.default_rng(0)
    e = 0.2 * draw.normal(size=(400, 10, 20))
    e[:, :, :5] += 2 * draw.normal(size=(400, 1, 5))
    assert lidar(torch.from_numpy(e)).value == pytest.approx(5, abs=0.3)
    # Fewer images than dimensions bound it.
    assert lidar(torch.from_numpy(draw.normal(size=(6, 4, 20)))).value < 5.01
    single = lidar(torch.from_numpy(e[:, :1]))
    assert not single.defined
    assert "2 views" in single.why


def test_alignment_as_the_paper_has_it() -> None:
    e = views()
    f = e / np.linalg.norm(e, axis=2, keepdims=True)
    two = (np.linalg.norm(f[:, 0] - f[:, 1], axis=1) ** 2).mean()
    assert alignment(torch.from_numpy(e[:, :2])).value == pytest.approx(two, rel=1e-9)
    pairs = [pdist(each) ** 2 for each in f]
    assert alignment(torch.from_numpy(e)).value == pytest.approx(np.mean(pairs), rel=1e-9)


def test_uniformity_is_the_exact_double_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    features = views()[:, 0]
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    expected = np.log(np.exp(-2 * pdist(unit) ** 2).mean())
    whole = uniformity(torch.from_numpy(features))
    assert whole.value == pytest.approx(expected, rel=1e-9)
    monkeypatch.setattr("sslengine.evaluate.label_free.geometry.BLOCK", 3 * 40)
    assert uniformity(torch.from_numpy(features)).value == pytest.approx(expected, rel=1e-9)
    many = torch.randn(3000, 256, generator=torch.Generator().manual_seed(0))
    assert uniformity(many).value == pytest.approx(-4, abs=0.05)


def neighbours(rows: Array, k: int = 10) -> Array:
    made = NearestNeighbors(n_neighbors=k, metric="cosine", algorithm="brute").fit(rows)
    found: Array = made.kneighbors(return_distance=False)  # without the row itself
    return found


def test_consistency_as_scikit_learn_finds_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "KEPT", 7 * 40)
    monkeypatch.setattr(search, "QUERIES", 3)
    e = views(noise=1.0)
    first, second = neighbours(e[:, 0]), neighbours(e[:, 1])
    shared = np.mean([len({*a} & {*b}) / 10 for a, b in zip(first, second, strict=True)])
    assert 0.3 < shared < 0.9
    assert view_consistency(torch.from_numpy(e)).value == pytest.approx(shared)
    features, previous = torch.from_numpy(e[:, 0]), torch.from_numpy(e[:, 1])
    assert checkpoint_consistency(features, previous).value == pytest.approx(shared)
    assert checkpoint_consistency(features, 3 * features).value == 1
    other = checkpoint_consistency(features, previous[1:])
    assert not other.defined
    assert "different images" in other.why


def test_nearest_are_exact_far_from_the_origin() -> None:
    rows = 1e8 + np.random.default_rng(0).normal(size=(50, 4))
    far = cdist(rows, rows)
    np.fill_diagonal(far, np.inf)
    found = search.nearest(torch.from_numpy(rows), 3).numpy()
    assert (found == far.argsort(axis=1)[:, :3]).all()
