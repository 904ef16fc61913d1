"""Retrieval in a set, against scikit-learn's average precision and a search by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score
from sklearn.metrics.pairwise import cosine_similarity
from torch import Tensor

from sslengine.evaluation.outcome import Outcome
from sslengine.evaluation.retrieval import ranks
from sslengine.evaluation.retrieval.labelled import retrieval, view_retrieval
from sslengine.evaluation.store import Store


def noisy(count: int = 150, classes: int = 5) -> tuple[Tensor, Tensor]:
    draw = np.random.default_rng(0)
    labels = draw.integers(classes, size=count)
    centres = draw.normal(size=(classes, 12))
    features = centres[labels] + 1.5 * draw.normal(size=(count, 12))
    return torch.from_numpy(features), torch.from_numpy(labels)


def by_hand(
    features: Tensor, wanted: np.ndarray, asks: np.ndarray | None = None
) -> dict[str, float]:
    """wanted: (images, images). asks: which images are queries."""
    similar = cosine_similarity(features)
    found = []
    for own, (scores, hits) in enumerate(zip(similar, wanted)):
        if asks is not None and not asks[own]:
            continue
        scores, hits = np.delete(scores, own), np.delete(hits, own)
        best = np.argsort(-scores)
        first = [float(hits[best[:k]].any()) for k in (1, 5, 10)]
        found.append([average_precision_score(hits, scores), *first])
    return dict(zip(("mAP", "R@1", "R@5", "R@10"), 100 * np.mean(found, axis=0)))


def test_each_image_finds_its_class() -> None:
    features, labels = noisy()
    expected = by_hand(features, (labels[:, None] == labels).numpy())
    found = retrieval(features, labels)
    assert dict(found.metrics) == pytest.approx(expected, rel=1e-12)
    assert found.details == {"queries": 150, "images": 150}
    assert 30 < found.metrics["mAP"] < 95


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Also if they are read from a store, in a type that numpy does not have."""
    features, labels = noisy()
    features = features.bfloat16()
    expected = dict(retrieval(features, labels).metrics)
    store = Store.make(tmp_path / "features", {}, len(features), dtype="bfloat16")
    for shard in store.shards():
        some = slice(shard.images.start, shard.images.stop)
        numbers = torch.arange(150)[some]
        store.write(shard, {"flatten": features[some]}, labels[some], numbers)
    for name, size in (("QUERIES", 7), ("BLOCK", 11), ("WANTED", 70)):
        monkeypatch.setattr(ranks, name, size)
    found = retrieval(store.layer("flatten"), store.targets)
    assert dict(found.metrics) == pytest.approx(expected, rel=1e-9)


def test_images_of_several_classes_share_one() -> None:
    features, labels = noisy()
    rows = torch.nn.functional.one_hot(labels, 6)
    rows[::3, 5] = 1
    wanted = (rows @ rows.T > 0).numpy()
    found = retrieval(features, rows).metrics
    assert dict(found) == pytest.approx(by_hand(features, wanted), rel=1e-12)


def test_images_of_which_some_classes_are_unknown() -> None:
    """Only those of which all are unknown are left out; an unknown class is not shared."""
    features, labels = noisy(60)
    rows = torch.nn.functional.one_hot(labels, 6)
    rows[::3, 5] = 1
    rows[torch.arange(6, 60), torch.arange(6, 60) % 5] = -1
    rows[:4] = -1
    known = rows[4:].numpy()
    wanted = (known[:, None, :] == 1) & (known[None, :, :] == 1)
    wanted = wanted.any(axis=2)
    asks = (wanted.sum(axis=1) - wanted.diagonal()) > 0
    assert not asks.all()
    found = retrieval(features, rows)
    expected = by_hand(features[4:], wanted, asks)
    assert dict(found.metrics) == pytest.approx(expected, rel=1e-12)
    assert found.details == {"queries": 56, "images": 56}
    alone = len(asks) - asks.sum()
    assert found.notes == (
        "4 of 60 images have no label: left out",
        "of 54 of 60 images some classes are unknown: they count as not shared",
        f"{alone} of 56 queries have no other image of their class",
    )


def test_a_sample_of_queries_and_images_without_label() -> None:
    features, labels = noisy()
    labels[:10] = -1
    labels[10] = 7  # alone in its class
    found = retrieval(features, labels)
    rest = retrieval(features[11:], labels[11:])
    # Of those without label none is a query, or found; the one alone is found by mistake.
    assert found.details["queries"] == 140
    assert found.notes == (
        "10 of 150 images have no label: left out",
        "1 of 140 queries have no other image of their class",
    )
    assert abs(found.metrics["mAP"] - rest.metrics["mAP"]) < 1
    some = retrieval(features, labels, queries=60)
    assert some.details == {"queries": 60, "images": 140}
    assert some.metrics != found.metrics
    assert some.metrics == retrieval(features, labels, queries=60).metrics


def test_equal_features_find_nothing() -> None:
    _, labels = noisy()
    same = torch.ones(150, 12)
    for found in (retrieval(same, labels), retrieval(3 * same, labels)):
        assert found == Outcome(
            {},
            ("Retrieval: all features have the same direction: no image is nearer than another.",),
        )
    two = same.clone()
    two[0, 0] = 5.0
    # All others are equally near: those that are not wanted are taken first.
    assert retrieval(two, labels).metrics["R@10"] == 0
    assert "two classes" in retrieval(noisy()[0], torch.zeros(150)).notes[0]
    assert "NaN" in retrieval(torch.full((4, 2), torch.nan), torch.arange(4)).notes[0]
    assert "no query" in retrieval(torch.eye(4), torch.arange(4)).notes[0]


def test_another_view_is_found() -> None:
    draw = torch.Generator().manual_seed(0)
    images = torch.randn(80, 16, generator=draw)
    views = images.unsqueeze(1) + 1.2 * torch.randn(80, 2, 16, generator=draw)
    similar = cosine_similarity(views[:, 0], views[:, 1])
    place = (similar > np.diag(similar)[:, None]).sum(axis=1)
    expected = {f"view R@{k}": 100 * (place < k).mean() for k in (1, 5, 10)}
    found = view_retrieval(views).metrics
    assert dict(found) == pytest.approx({"MRR": 100 * (1 / (place + 1)).mean(), **expected})
    assert 20 < found["view R@1"] < 95
    assert view_retrieval(images.unsqueeze(1).repeat(1, 2, 1)).metrics["view R@1"] == 100
    assert "direction" in view_retrieval(torch.ones(8, 2, 4)).notes[0]
    assert "2 views" in view_retrieval(images.unsqueeze(1)).notes[0]
