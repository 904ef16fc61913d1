"""Intrinsic dimensions and CLID: known dimensions, scikit-learn's neighbours, scipy's trees."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.sparse.csgraph import minimum_spanning_tree
from sklearn.cluster import KMeans
from sklearn.neighbors import KNeighborsClassifier, NearestNeighbors

from sslengine.evaluate.label_free import geometry as trees
from sslengine.evaluate.label_free.geometry import (
    clid_over,
    cluster_learnability,
    distances,
    id_est,
    tree_length,
    two_nn,
)
from tests.tail import slow_but

Array = NDArray[np.float64]


def cube(dimension: int, rows: int = 3000, width: int = 20) -> Array:
    """Uniform in a cube that lies askew in `width` dimensions."""
    draw = np.random.default_rng(dimension)
    turn = np.linalg.qr(draw.normal(size=(width, width)))[0][:dimension]
    return draw.uniform(size=(rows, dimension)) @ turn + 5


def ratios(rows: Array) -> Array:
    """The distance of the second nearest over that of the nearest."""
    far, _ = NearestNeighbors(n_neighbors=2).fit(rows).kneighbors()
    return np.asarray(far[:, 1] / far[:, 0])


@pytest.mark.parametrize("dimension", slow_but([2], [1, 2, 4]))
def test_a_cube_has_its_dimension(dimension: int) -> None:
    rows = torch.from_numpy(cube(dimension))
    assert two_nn(rows).value == pytest.approx(dimension, rel=0.06)
    assert id_est(rows).value == pytest.approx(dimension, rel=0.12)


def test_two_nn_is_the_likelihood_of_all_rows() -> None:
    """Another estimator of that name drops the 10 % of largest ratios, and fits a line."""
    rows = cube(3, 500)
    mu = ratios(rows)
    found = two_nn(torch.from_numpy(rows)).value
    assert found == pytest.approx(500 / np.log(mu).sum(), rel=1e-7)
    kept = np.sort(np.log(mu))[:450]
    y = -np.log(1 - np.arange(450) / 500)
    assert abs(found - (kept @ y) / (kept @ kept)) > 0.02


def test_two_nn_leaves_out_rows_that_have_an_equal_one() -> None:
    rows = cube(2, 400)
    twice = torch.from_numpy(np.concatenate([rows, rows[:30]]))
    found = two_nn(twice)
    assert found.details["left_out"] == 60
    assert found.value == pytest.approx(2, rel=0.2)


def test_trees_are_as_long_as_scipys() -> None:
    rows = cube(3, 120)
    far = distances(torch.from_numpy(rows))
    assert tree_length(far) == pytest.approx(minimum_spanning_tree(far).sum(), rel=1e-9)
    # scipy takes a distance of 0 for a missing edge; here equal rows are neighbours.
    twice = distances(torch.from_numpy(np.concatenate([rows, rows[:5]])))
    assert tree_length(twice) == pytest.approx(tree_length(far), rel=1e-6)


def test_id_est_is_the_slope_of_the_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trees, "MOST_ROWS", 200)
    found = id_est(torch.from_numpy(cube(2, 300)))
    draw = np.random.default_rng(0)
    rows = cube(2, 300)[np.sort(draw.choice(300, 200, replace=False))]
    sizes, lengths = [20, 28, 39, 54, 75, 104, 144, 200], []
    for size in sizes:
        draws = [rows[draw.choice(200, size, replace=False)] for _ in range(5)]
        draws = [rows] if size == 200 else draws
        lengths.append(np.mean([_scipy_length(each) for each in draws]))
    slope = np.polyfit(np.log(sizes), np.log(lengths), 1)[0]
    assert found.value == pytest.approx(1 / (1 - slope), rel=1e-9)
    assert found.details["rows"] == 200
    assert found.n == 300


def _scipy_length(rows: Array) -> float:
    far = np.linalg.norm(rows[:, None] - rows[None], axis=2)
    return float(minimum_spanning_tree(far).sum())


def test_cluster_learnability_as_scikit_learn_has_it() -> None:
    rows = np.random.default_rng(0).normal(size=(300, 5))
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    clusters = KMeans(17, n_init=1, random_state=0).fit_predict(unit)  # 17 = int(sqrt(300))
    # Every second row of each cluster is known, in a random order.
    seen, known = dict.fromkeys(range(17), 0), np.zeros(300, bool)
    for number in torch.randperm(300, generator=torch.Generator().manual_seed(0)).tolist():
        known[number] = seen[clusters[number]] % 2 == 0
        seen[clusters[number]] += 1
    one = KNeighborsClassifier(1, metric="cosine").fit(unit[known], clusters[known])
    expected = one.score(unit[~known], clusters[~known])
    found = cluster_learnability(torch.from_numpy(rows)).value
    assert found == pytest.approx(expected)
    assert 0.5 < found < 0.95

    # What public copies compute: neighbours among centroids, or among one's own training rows.
    centroids = KMeans(17, n_init=1, random_state=0).fit(unit).cluster_centers_
    far = np.linalg.norm(unit[:, None] - centroids[None], axis=2)
    assert (far.argmin(axis=1) == clusters).mean() == 1.0
    own = KNeighborsClassifier(5, metric="cosine").fit(unit, clusters).score(unit, clusters)
    assert abs(found - own) > 0.03


def test_clid_over_checkpoints_is_the_sum_of_z_scores() -> None:
    parts = [(0.5, 10.0), (0.7, 12.0), (0.6, 17.0)]
    expected = sum((c - np.mean(c)) / np.std(c) for c in np.array(parts).T)
    assert clid_over(parts) == pytest.approx(list(expected))
    assert all(map(math.isnan, clid_over(parts[:2])))
    assert clid_over([(0.5, 1.0), (0.5, 2.0), (0.5, 3.0)]) == pytest.approx(
        [-1.2247, 0, 1.2247], abs=1e-4
    )
