"""Rankings made by hand, and the two descriptors of retrieval."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from sslengine.contrib.retrieval.landmarks import Truth, landmarks
from sslengine.errors import DataError
from sslengine.evaluation.retrieval.copies import TOP, copy_detection
from sslengine.evaluation.retrieval.descriptors import Whitening, gem


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
