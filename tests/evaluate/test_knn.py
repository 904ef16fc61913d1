"""kNN against scikit-learn, and against the vote written out sample by sample."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.neighbors import KNeighborsClassifier
from torch import Tensor

from sslengine.evaluate import knn
from sslengine.evaluate.knn import knn_curve, knn_scores, search


def clusters(count: int, seed: int, dims: int = 6, classes: int = 5) -> tuple[Tensor, Tensor]:
    """Features about five centres, so near each other that neighbours disagree."""
    draw = np.random.default_rng(seed)
    centres = np.random.default_rng(99).normal(size=(classes, dims))
    labels = draw.integers(0, classes, count)
    features = centres[labels] + draw.normal(size=(count, dims))
    return torch.from_numpy(features), torch.from_numpy(labels)


TRAIN, TRAIN_LABELS = clusters(300, seed=0)
TEST, TEST_LABELS = clusters(120, seed=1)


def written_out(
    train: Tensor, labels: Tensor, test: Tensor, k: int, sigma: float | None, metric: str
) -> Tensor:
    votes = torch.zeros(len(test), int(labels.max()) + 1, dtype=torch.float64)
    for row, asked in enumerate(test.double().tolist()):
        found = []
        for position, known in enumerate(train.double().tolist()):
            product = math.fsum(a * b for a, b in zip(asked, known, strict=True))
            if metric == "cosine":
                product /= math.hypot(*asked) * math.hypot(*known)
            if metric == "euclid":
                product = -math.dist(asked, known)
            found.append((-product, position))
        found = sorted(found)[:k]
        for distance, position in found:
            weight = 1.0 if sigma is None else math.exp((found[0][0] - distance) / sigma)
            votes[row, labels[position]] += weight
    return votes


@pytest.mark.parametrize("metric", ["cosine", "dot", "euclid"])
@pytest.mark.parametrize("sigma", [0.1, 2.0, None])
@pytest.mark.parametrize("k", [1, 7, 300])
def test_votes_equal_those_written_out(metric: Any, sigma: float | None, k: int) -> None:
    votes = knn_scores(TRAIN, TRAIN_LABELS, TEST, [k], sigma, metric)[k]
    expected = written_out(TRAIN, TRAIN_LABELS, TEST, k, sigma, metric)
    torch.testing.assert_close(votes, expected, rtol=1e-9, atol=1e-12)


def test_weighted_predictions_equal_those_of_scikit_learn() -> None:
    judge = KNeighborsClassifier(
        30, metric="cosine", algorithm="brute", weights=lambda distance: np.exp(-distance / 0.1)
    )
    expected = 100 * judge.fit(TRAIN, TRAIN_LABELS).score(TEST, TEST_LABELS)
    assert 30 < expected < 95  # neither hopeless nor trivial
    (accuracy,) = knn_curve(TRAIN, TRAIN_LABELS, TEST, TEST_LABELS, [30], sigma=0.1)[30]
    assert accuracy == pytest.approx(expected, abs=1e-9)


@given(data=st.data())
def test_of_equally_similar_features_the_first_ones_vote(data: st.DataObject) -> None:
    """Small whole numbers: products are exact in float32 and ties abound."""
    number = st.integers(-1, 1)
    rows = data.draw(st.lists(st.tuples(number, number), min_size=1, max_size=12))
    asked = data.draw(st.lists(st.tuples(number, number), min_size=1, max_size=4))
    labels = data.draw(st.lists(st.integers(0, 3), min_size=len(rows), max_size=len(rows)))
    k = data.draw(st.integers(1, len(rows)))
    train, test = torch.tensor(rows, dtype=torch.float32), torch.tensor(asked).float()
    votes = knn_scores(train, torch.tensor(labels), test, [k], sigma=None, metric="dot")[k]
    assert torch.equal(votes, written_out(train, torch.tensor(labels), test, k, None, "dot"))


def test_of_classes_with_equal_votes_the_lower_wins() -> None:
    train, labels = torch.ones(4, 2), torch.tensor([3, 1, 1, 3])
    answers: dict[int, Tensor] = {}
    knn_curve(train, labels, torch.ones(1, 2), torch.ones(1), [4], answers=answers)
    assert answers[4].tolist() == [1]


@pytest.mark.parametrize("piece", [1, 301, 1000])
def test_the_size_of_the_pieces_changes_nothing(piece: int) -> None:
    whole, cut = search(TRAIN, TEST, 9), search(TRAIN, TEST, 9, piece=piece)
    assert torch.equal(cut.rows, whole.rows)
    torch.testing.assert_close(cut.similarities, whole.similarities, rtol=1e-12, atol=0)


def test_large_dot_products_do_not_overflow() -> None:
    """exp(s / sigma) with s = 1e6 would."""
    votes = knn_scores(1e3 * TRAIN, TRAIN_LABELS, 1e3 * TEST, [9], sigma=0.1, metric="dot")[9]
    assert votes.isfinite().all()
    nearest = knn_scores(TRAIN, TRAIN_LABELS, TEST, [1], metric="dot")[1]
    assert torch.equal(votes.argmax(1), nearest.argmax(1))


def test_half_precision_features_are_compared_in_single_precision() -> None:
    low = TRAIN.half(), TRAIN_LABELS, TEST.half()
    high = TRAIN.half().float(), TRAIN_LABELS, TEST.half().float()
    assert torch.equal(knn_scores(*low, [5])[5], knn_scores(*high, [5])[5])


@pytest.mark.parametrize("metric", ["cosine", "dot", "euclid"])
def test_one_search_for_all_k(metric: Any) -> None:
    ks = [20, 1, 300, 7]
    curve = knn_curve(TRAIN, TRAIN_LABELS, TEST, TEST_LABELS, ks, 0.1, metric, top=(1, 2))
    assert list(curve) == ks
    for k in ks:
        votes = written_out(TRAIN, TRAIN_LABELS, TEST, k, 0.1, metric)
        hits = votes.argsort(dim=1, descending=True, stable=True) == TEST_LABELS.unsqueeze(1)
        expected = [100 * float(hits[:, :top].sum() / len(TEST)) for top in (1, 2)]
        assert curve[k] == pytest.approx(expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_neighbours_are_those_of_a_sorted_row(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of whole numbers, which tie often; blocks of 5 rows, groups of 2, queries in threes."""
    for name, value in {"GROUP": 2, "QUERIES": 3, "KEPT": 28}.items():
        monkeypatch.setattr(knn, name, value)
    draw = torch.Generator().manual_seed(0)
    train = torch.randint(-2, 3, (97, 4), generator=draw).to(dtype)
    asked = torch.randint(-2, 3, (20, 4), generator=draw).to(dtype)
    found = search(train, asked, 31, "dot", piece=15)
    products = asked @ train.T
    order = products.argsort(dim=1, descending=True, stable=True)[:, :31]
    assert torch.equal(found.rows, order)
    assert torch.equal(found.similarities, products.gather(1, order))
    assert (found.similarities.diff(dim=1) == 0).float().mean() > 0.5


def test_a_matrix_of_another_program_is_read_in_pieces(tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", TRAIN.numpy().astype(np.float16))
    mapped = np.load(tmp_path / "rows.npy", mmap_mode="r")
    found = search(mapped, TEST.half(), 5, piece=1200)
    whole = search(TRAIN.half(), TEST.half(), 5)
    assert torch.equal(found.rows, whole.rows)
