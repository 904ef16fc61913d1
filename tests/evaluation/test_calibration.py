"""Calibration and the detection of other images, against scikit-learn and sums by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score, roc_curve
from sklearn.neighbors import NearestNeighbors
from sklearn.preprocessing import StandardScaler

from sslengine.evaluation.calibration import calibration, calibration_of_probe
from sslengine.evaluation.options import LinearProbeOptions
from sslengine.evaluation.out_of_set import accepted, auroc, out_of_set


def test_the_error_of_four_samples_by_hand() -> None:
    chances = torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.2, 0.8], [0.45, 0.55]])
    labels = torch.tensor([0, 1, 1, 1])
    found = calibration(chances.log(), labels, bins=10)
    # Bins of 0.9 (half of them right), 0.8 (right), 0.55 (right).
    expected = (2 * abs(0.5 - 0.9) + abs(1 - 0.8) + abs(1 - 0.55)) / 4
    assert found.metrics["ECE"] == pytest.approx(100 * expected, rel=1e-6)
    assert found.metrics["accuracy"] == 75
    assert found.metrics["confidence"] == pytest.approx(100 * (0.9 + 0.9 + 0.8 + 0.55) / 4)
    assert [row[0] for row in found.details["bins"]] == [1, 1, 2]


def test_fifteen_bins() -> None:
    draw = np.random.default_rng(0)
    logits = 2 * draw.normal(size=(500, 4))
    labels = draw.integers(4, size=500)
    chances = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    confidence, right = chances.max(axis=1), chances.argmax(axis=1) == labels
    bins = np.digitize(confidence, np.linspace(0, 1, 16))
    expected = sum(
        abs(right[bins == each].mean() - confidence[bins == each].mean()) * (bins == each).mean()
        for each in np.unique(bins)
    )
    found = calibration(torch.from_numpy(logits), torch.from_numpy(labels))
    assert found.metrics["ECE"] == pytest.approx(100 * expected, rel=1e-9)


def test_what_cannot_be_calibrated() -> None:
    logits = torch.tensor([[1.0, 0.0], [0.0, 30.0]])
    assert calibration(logits, torch.tensor([-1, 1])).metrics["ECE"] == pytest.approx(0, abs=1e-9)
    for bad in (logits * torch.inf, logits[:0]):
        found = calibration(bad, torch.ones(len(bad)))
        assert not found.metrics
        assert "finite logits" in found.notes[0]


def test_areas_are_those_of_scikit_learn() -> None:
    draw = torch.Generator().manual_seed(0)
    # Rounded: many scores are equal.
    own = (torch.randn(300, generator=draw) * 3).round()
    other = (torch.randn(200, generator=draw) * 3 - 2).round()
    wanted, scores = np.repeat([1, 0], [300, 200]), torch.cat([own, other])
    assert auroc(own, other) == pytest.approx(roc_auc_score(wanted, scores), rel=1e-12)
    false, true, _ = roc_curve(wanted, scores, drop_intermediate=False)
    assert accepted(own, other) == pytest.approx(false[true >= 0.95].min())


def test_another_set_is_farther() -> None:
    draw = torch.Generator().manual_seed(0)
    train, inside, outside = torch.randn(3, 120, 8, generator=draw)
    train, inside, outside = train + 1, inside + 1, outside + 0.4
    nearest = NearestNeighbors(n_neighbors=50, metric="cosine").fit(train)
    far = [nearest.kneighbors(rows)[0][:, -1] for rows in (inside, outside)]
    expected = roc_auc_score(np.repeat([0, 1], 120), np.concatenate(far))
    found = out_of_set(train, inside, outside)
    assert found.metrics["AUROC"] == pytest.approx(100 * expected, abs=0.01)
    assert 60 < found.metrics["AUROC"] < 95
    assert not found.notes


def test_few_equal_and_broken_features() -> None:
    some = torch.ones(6, 4)
    found = out_of_set(some, some, some)
    assert found.metrics["AUROC"] == 50
    assert found.notes == ("k=50: there are only 6 training images; the farthest of them counts",)
    assert "other features are NaN" in out_of_set(some, some, some * torch.nan).notes[0]
    assert "no test features" in out_of_set(some, some[:0], some).notes[0]


def test_of_the_linear_probe_on_test_images() -> None:
    """With a test class that the probe does not know, which is never right."""
    draw = torch.Generator().manual_seed(0)
    labels = torch.arange(90) % 3
    features = torch.eye(3)[labels] + 0.7 * torch.randn(90, 3, generator=draw)
    wanted = torch.where(torch.arange(90) < 9, 7, labels)
    found = calibration_of_probe(
        features, labels, features, wanted, LinearProbeOptions(PENALTIES=[0.1])
    )
    scaled = StandardScaler().fit_transform(features.double().numpy())
    probe = LogisticRegression(C=1 / (0.1 * 90), tol=1e-10, max_iter=5000)
    chances = probe.fit(scaled, labels.numpy()).predict_proba(scaled)
    confidence, right = chances.max(axis=1), chances.argmax(axis=1) == wanted.numpy()
    bins = np.digitize(confidence, np.linspace(0, 1, 16))
    error = sum(
        abs(right[bins == each].mean() - confidence[bins == each].mean()) * (bins == each).mean()
        for each in np.unique(bins)
    )
    assert found.metrics["ECE"] == pytest.approx(100 * error, rel=1e-3)
    assert found.metrics["accuracy"] == pytest.approx(100 * right.mean())
    assert "training images" in found.details["chosen_on"]
