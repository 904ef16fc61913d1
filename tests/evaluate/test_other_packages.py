"""Golden numbers of independent packages: faiss searches, torchmetrics measures."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sslengine.engines.on_images import auroc, out_of_set
from sslengine.evaluate.answers import calibration
from sslengine.evaluate.knn import Neighbours, knn_curve, knn_scores, knn_within, nearest, search
from sslengine.evaluate.retrieval import retrieval
from sslengine.meters.mean_ap import average_precision

CLASSES, TRAIN, TEST, WIDTH, K = 6, 500, 120, 16, 20


def clusters(count: int, seed: int) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    centres = torch.randn(CLASSES, WIDTH, generator=torch.Generator().manual_seed(9))
    labels = torch.randint(CLASSES, (count,), generator=draw)
    return centres[labels] + 1.5 * torch.randn(count, WIDTH, generator=draw), labels


@pytest.fixture(scope="module")
def sets() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return *clusters(TRAIN, 0), *clusters(TEST, 1)


def of_faiss(train: Tensor, queries: Tensor, k: int, metric: str) -> tuple[Any, Any]:
    """Scores, the nearest first, and rows."""
    faiss = pytest.importorskip("faiss")
    faiss.omp_set_num_threads(1)
    index = (faiss.IndexFlatL2 if metric == "euclid" else faiss.IndexFlatIP)(train.shape[1])
    some = [each.numpy().copy() for each in (train, queries)]
    if metric == "cosine":
        for each in some:
            faiss.normalize_L2(each)
    index.add(some[0])
    scores, rows = index.search(some[1], k)
    return (-np.sqrt(scores) if metric == "euclid" else scores), rows


def expect_the_same(found: Neighbours, scores: Any, rows: Any) -> None:
    np.testing.assert_allclose(found.similarities.numpy(), scores, rtol=1e-4, atol=1e-5)
    gaps = -np.diff(scores, axis=1)
    apart = np.pad(gaps > 1e-5, ((0, 0), (1, 1)), constant_values=True)
    clear = apart[:, 1:] & apart[:, :-1]  # single precision rounds both differently
    assert clear.mean() > 0.99
    np.testing.assert_array_equal(found.rows.numpy()[clear], rows[clear])


@pytest.mark.parametrize("metric", ["cosine", "dot", "euclid"])
def test_neighbours_are_those_of_faiss(metric: Any, sets: tuple[Tensor, ...]) -> None:
    train, _, test, _ = sets
    expect_the_same(search(train, test, K, metric), *of_faiss(train, test, K, metric))


def test_neighbours_among_themselves_are_those_of_faiss(sets: tuple[Tensor, ...]) -> None:
    """faiss finds each row itself first."""
    train, labels, _, _ = sets
    _, rows = of_faiss(train, train, K + 1, "euclid")
    np.testing.assert_array_equal(rows[:, 0], np.arange(TRAIN))
    assert (nearest(train, K).numpy() == rows[:, 1:]).mean() > 0.999
    _, rows = of_faiss(train, train, 2, "cosine")
    expected = 100 * float((labels[rows[:, 1]] == labels).float().mean())
    assert knn_within(train, labels, [1])[1][0] == pytest.approx(expected)


def test_votes_of_faiss_neighbours_and_top_k_of_torchmetrics(sets: tuple[Tensor, ...]) -> None:
    measures = pytest.importorskip("torchmetrics.functional.classification")
    train, labels, test, wanted = sets
    scores, rows = (torch.from_numpy(each) for each in of_faiss(train, test, K, "cosine"))
    shown = torch.nn.functional.one_hot(labels, CLASSES)[rows].double()
    votes = ((scores.double() / 0.07).exp().unsqueeze(2) * shown).sum(dim=1)
    curve = knn_curve(train, labels, test, wanted, [K], 0.07, top=(1, 3))[K]
    for top, found in zip((1, 3), curve, strict=True):
        how = {"num_classes": CLASSES, "top_k": top, "average": "micro"}
        assert found == pytest.approx(
            100 * float(measures.multiclass_accuracy(votes, wanted, **how))
        )
    own = knn_scores(train, labels, test, [K], 0.07)[K]
    shares = (each / each.sum(dim=1, keepdim=True) for each in (own, votes))
    torch.testing.assert_close(*shares, rtol=1e-4, atol=1e-6)


def test_retrieval_is_that_of_torchmetrics(sets: tuple[Tensor, ...]) -> None:
    retrieved = pytest.importorskip("torchmetrics.retrieval")
    features, labels = sets[2:]
    unit = torch.nn.functional.normalize(features.double())
    others = ~torch.eye(TEST, dtype=torch.bool)
    similar = (unit @ unit.T)[others] + 2  # it leaves out wanted images of a score below 0
    wanted = labels.unsqueeze(1).eq(labels)[others]
    queries = torch.arange(TEST).unsqueeze(1).expand(TEST, TEST)[others]
    found = retrieval(features, labels).metrics
    expected = {"mAP": retrieved.RetrievalMAP()}
    expected |= {f"R@{k}": retrieved.RetrievalHitRate(top_k=k) for k in (1, 5, 10)}
    for name, measure in expected.items():
        value = 100 * float(measure(similar, wanted, indexes=queries))
        assert found[name] == pytest.approx(value, rel=1e-5), name


def test_areas_and_precisions_are_those_of_torchmetrics(sets: tuple[Tensor, ...]) -> None:
    """The cosine with the 50th neighbour is faiss's too."""
    measures = pytest.importorskip("torchmetrics.functional.classification")
    train, _, test, _ = sets
    other = torch.randn(80, WIDTH, generator=torch.Generator().manual_seed(5))
    ranked = [
        torch.from_numpy(of_faiss(train, each, 50, "cosine")[0][:, -1].copy())
        for each in (test, other)
    ]
    scores, wanted = torch.cat(ranked), torch.cat([torch.ones(TEST), torch.zeros(80)]).long()
    expected = float(measures.binary_auroc(scores, wanted))
    assert auroc(*ranked) == pytest.approx(expected, rel=1e-6)
    assert out_of_set(train, test, other).metrics["AUROC"] == pytest.approx(
        100 * expected, rel=1e-4
    )
    rows = torch.randint(2, (60, 5), generator=torch.Generator().manual_seed(6))
    logits = torch.randn(60, 5, generator=torch.Generator().manual_seed(7))
    of_each = measures.multilabel_average_precision(logits, rows, 5, average="none")
    found = average_precision(logits, rows, interpolated=False)
    torch.testing.assert_close(found.float(), of_each, rtol=1e-5, atol=1e-6)


def test_the_calibration_error_is_that_of_torchmetrics() -> None:
    measures = pytest.importorskip("torchmetrics.functional.classification")
    draw = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(500, 4, generator=draw, dtype=torch.float64)
    labels = torch.randint(4, (500,), generator=draw)
    expected = measures.multiclass_calibration_error(logits.softmax(dim=1), labels, 4, n_bins=15)
    assert calibration(logits, labels).metrics["ECE"] == pytest.approx(
        100 * float(expected), rel=1e-5
    )
