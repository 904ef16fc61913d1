"""Retrieval: by labels, of landmarks and copies, and the descriptors of R-MAC."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score
from sklearn.metrics.pairwise import cosine_similarity
from torch import Tensor

from sslengine.contrib.retrieval.landmarks import Truth, landmarks
from sslengine.contrib.retrieval.rmac import most_regions, region_maxima, regions, rmac
from sslengine.errors import DataError
from sslengine.evaluate import retrieval as ranks
from sslengine.evaluate.outcome import Outcome
from sslengine.evaluate.retrieval import (
    TOP,
    Whitening,
    copy_detection,
    gem,
    retrieval,
    rows_for_cosine,
)
from sslengine.evaluate.store import Store


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
    for name, size in (("AT_ONCE", 7), ("BLOCK", 11), ("WANTED", 70)):
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


# ---- Rankings made by hand, and the two descriptors of retrieval.


def at(similarities: list[float]) -> Tensor:
    """Features on the circle with these cosines with (1, 0)."""
    return torch.tensor([[each, math.sqrt(1 - each**2)] for each in similarities])


QUERY = torch.tensor([[1.0, 0.0]])


def test_a_ranking_of_six_with_junk() -> None:
    """Ranked: 3 (junk), 0 (easy), 4 (other), 1 (hard), 5 (junk), 2 (easy)."""
    database = at([0.8, 0.6, 0.1, 0.9, 0.7, 0.3])
    truth = [Truth(easy=[0, 2], hard=[1], junk=[3, 5])]
    found = landmarks(QUERY, database, truth).metrics
    # easy: 0, 4, 2 are ranked; wanted at 0 and 2.
    assert found["easy mAP"] == pytest.approx(100 * (1 + (1 / 2 + 2 / 3) / 2) / 2)
    assert found["easy mP@1"] == 100
    assert found["easy mP@5"] == pytest.approx(100 * 2 / 3)
    # medium: 0, 4, 1, 2; wanted at 0, 2, 3.
    medium = (1 + (1 / 2 + 2 / 3) / 2 + (2 / 3 + 3 / 4) / 2) / 3
    assert found["medium mAP"] == pytest.approx(100 * medium)
    assert found["medium mP@10"] == pytest.approx(100 * 3 / 4)
    # hard: 4, 1; wanted at 1. At its left precision is 0.
    assert found["hard mAP"] == pytest.approx(100 * (0 + 1 / 2) / 2)
    assert found["hard mP@1"] == 0
    assert found["hard mP@5"] == 50


def test_queries_without_an_image_are_left_out() -> None:
    database = at([0.8, 0.6, 0.1])
    truth = [Truth(easy=[0]), Truth(junk=[0])]
    found = landmarks(QUERY.repeat(2, 1), database, truth)
    assert found.metrics["easy mAP"] == 100
    assert "hard mAP" not in found.metrics
    assert found.notes == (
        "easy: 1 of 2 queries have no image to find",
        "medium: 1 of 2 queries have no image to find",
        "hard: 2 of 2 queries have no image to find",
    )
    assert set(landmarks(QUERY, database, truth[:1], levels=["easy"]).metrics) == {
        "easy mAP", "easy mP@1", "easy mP@5", "easy mP@10",
    }  # fmt: skip
    assert "image 9" in landmarks(QUERY, database, [Truth(easy=[9])]).notes[0]
    assert "truth of 2" in landmarks(QUERY, database, truth).notes[0]


def test_copies() -> None:
    """Originals at rank 0, at 2, beyond the first TOP, and one that has none."""
    database = at([0.9 - 0.02 * each for each in range(40)])
    found = copy_detection(QUERY.repeat(4, 1), database, [0, 2, TOP, -1])
    assert found.metrics["mAP"] == pytest.approx(100 * (1 + (0 + 1 / 3) / 2 + 0) / 3)
    assert found.metrics["R@1"] == pytest.approx(100 / 3)
    assert found.notes == ("1 of 4 queries have no original: left out",)
    assert copy_detection(QUERY, database, [TOP - 1]).metrics["mAP"] > 0
    assert "below 40" in copy_detection(QUERY, database, [40]).notes[0]


def test_gem() -> None:
    tokens = torch.tensor([[[1.0, -2.0], [3.0, 0.0]]], dtype=torch.float64)
    assert gem(tokens)[0].tolist() == pytest.approx([((1 + 81) / 2) ** 0.25, 1e-6])
    assert gem(tokens, p=1)[0, 0] == 2


def test_whitened_features_have_unit_covariance() -> None:
    draw = torch.Generator().manual_seed(0)
    mixing = torch.randn(5, 5, generator=draw, dtype=torch.float64)
    features = torch.randn(400, 5, generator=draw, dtype=torch.float64) @ mixing + 3
    whitening = Whitening.fit(features)
    torch.testing.assert_close(
        whitening(features).T.cov(correction=0), torch.eye(5, dtype=torch.float64)
    )
    torch.testing.assert_close(whitening(features).mean(dim=0).abs().max().item(), 0.0)
    # A second moment that is not centred, as in DINO's script, does not whiten.
    values, vectors = torch.linalg.eigh(features.T @ features / len(features))
    other = ((features - features.mean(dim=0)) @ vectors / values.sqrt()).T.cov(correction=0)
    assert other.diag().min() < 0.5


def test_directions_without_variance_are_dropped() -> None:
    draw = torch.Generator().manual_seed(0)
    flat = torch.cat([torch.randn(50, 2, generator=draw), torch.full((50, 2), 7.0)], dim=1)
    assert Whitening.fit(flat)(flat).shape == (50, 2)
    assert Whitening.fit(flat, components=1)(flat.half()).dtype == torch.float16
    with pytest.raises(DataError, match="all features are equal"):
        Whitening.fit(torch.ones(50, 3))


# ---- R-MAC against the regions of its authors' code (Tolias et al., as VISSL has it).


# Of (height, width), three levels: how many regions, and those of the second level.
AUTHORS = {
    (7, 7): (14, [(0, 0, 4), (0, 3, 4), (3, 0, 4), (3, 3, 4)]),
    (32, 24): (20, [(top, left, 16) for top in (0, 8, 16) for left in (0, 8)]),
    (5, 13): (32, [(top, left, 3) for top in (0, 2) for left in (0, 2, 5, 7, 10)]),
}


@pytest.mark.parametrize("size", AUTHORS)
def test_regions_of_the_authors(size: tuple[int, int]) -> None:
    count, second = AUTHORS[size]
    found = regions(*size, levels=3)
    assert len(found) == count <= most_regions(3)
    side = sorted({each[2] for each in found})[-2]
    assert [each for each in found if each[2] == side] == second
    height, width = size
    assert all(top + side <= height and left + side <= width for top, left, side in found)


def test_descriptors_written_out() -> None:
    maps = torch.randn(1, 3, 6, 9, dtype=torch.float64)
    places = regions(6, 9, 2)
    maxima = [maps[0, :, top : top + s, left : left + s].flatten(1).max(dim=1).values
              for top, left, s in places]  # fmt: skip
    unit = torch.stack([each / each.norm() for each in maxima])
    assert torch.allclose(region_maxima(maps, 2)[0], unit)
    whiten = Whitening.fit(torch.randn(40, 3, dtype=torch.float64), 2)
    white = torch.stack([whiten(each[None])[0] for each in unit])
    total = (white / white.norm(dim=1, keepdim=True)).sum(dim=0)
    assert torch.allclose(rmac(maps, 2, whiten)[0], total / total.norm())


def test_cosines_in_the_order_of_distances() -> None:
    queries, database = torch.randn(5, 4).double(), 3 * torch.randn(50, 4).double()
    ours, theirs = rows_for_cosine(queries, database)
    cosines = torch.nn.functional.normalize(ours) @ torch.nn.functional.normalize(theirs).T
    expected = torch.cdist(queries, database).argsort(dim=1)
    assert cosines.argsort(dim=1, descending=True).tolist() == expected.tolist()
