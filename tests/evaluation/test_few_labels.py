"""A share of the labels: which images are drawn, and scikit-learn on these."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from sslengine.evaluation.few_shot import few_labels, share_of_each_class
from sslengine.evaluation.options import LinearProbeOptions


def test_each_class_keeps_its_share() -> None:
    labels = torch.tensor([0] * 100 + [1] * 40 + [2] * 3 + [-1] * 10)
    rows = share_of_each_class(labels, 0.1, seed=0)
    assert torch.bincount(labels[rows]).tolist() == [10, 4, 1]
    assert torch.equal(rows, rows.sort().values)
    assert len(rows.unique()) == 15
    assert torch.equal(rows, share_of_each_class(labels, 0.1, seed=0))
    assert not torch.equal(rows, share_of_each_class(labels, 0.1, seed=1))


def test_as_scikit_learn_on_the_drawn_images() -> None:
    draw = np.random.default_rng(0)
    labels = np.repeat(np.arange(3), [100, 60, 40])
    features = draw.normal(size=(200, 6)) + 1.2 * np.eye(3, 6)[labels]
    options = LinearProbeOptions(PENALTIES=[0.1])
    given = (torch.from_numpy(features), torch.from_numpy(labels))
    found = few_labels(*given, *given, shares=[0.1], draws=2, options=options)
    expected = []
    for seed in range(2):
        rows = share_of_each_class(given[1], 0.1, seed).numpy()
        mean, deviation = features[rows].mean(axis=0), features[rows].std(axis=0)
        scaled = (features - mean) / deviation
        probe = LogisticRegression(C=1 / (0.1 * len(rows)), tol=1e-10, max_iter=5000)
        expected.append(100 * probe.fit(scaled[rows], labels[rows]).score(scaled, labels))
    assert found.metrics["10 %"] == pytest.approx(np.mean(expected))
    assert found.details["images"] == {"10 %": 20}
    assert found.details["penalties"] == {"10 %": [0.1, 0.1]}


def test_what_is_unusual_of_the_probes_is_a_note_of_the_share(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Once for all draws, and no warning that could be of the probe on all labels."""
    features, labels = torch.randn(60, 4).double(), torch.arange(60) % 3
    options = LinearProbeOptions(PENALTIES=[1e-6], MAX_ITERATIONS=1)
    given = (features, labels, features, labels)
    found = few_labels(*given, shares=[0.02, 0.3], draws=2, options=options)
    slow = "it has not converged in 1 iterations (config.LINEAR_PROBE.MAX_ITERATIONS)"
    told = [note for note in found.notes if note.startswith("30 %")]
    assert told == [f"30 %: {slow}: its accuracy may be too low"]
    (single,) = [note for note in found.notes if "none is held out" in note]
    assert single.startswith("2 %: ")
    assert caplog.records == []


def test_of_one_class_the_reason_and_no_number() -> None:
    features = torch.randn(8, 2)
    found = few_labels(features, torch.zeros(8).long(), features, torch.zeros(8).long())
    assert not found.metrics
    assert "not of two classes" in found.notes[0]
