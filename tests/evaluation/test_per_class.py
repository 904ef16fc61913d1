"""Answers class by class, against scikit-learn and by hand."""

from __future__ import annotations

import pytest
import torch
from sklearn import metrics

from sslengine.evaluation.options import LinearProbeOptions
from sslengine.evaluation.per_class import PerClass, per_class


def test_the_means_are_those_of_scikit_learn() -> None:
    """A class without images (4) and one that is never answered (3)."""
    draw = torch.Generator().manual_seed(0)
    labels = torch.randint(4, (400,), generator=draw) ** 2 // 3
    answers = torch.where(torch.rand(400, generator=draw) < 0.6, labels, 4 * (labels == 0))
    answers[answers == 3] = 1
    found = PerClass.of(answers, labels).metrics
    recalls = metrics.recall_score(labels, answers, average=None, labels=labels.unique())
    wanted = {
        "accuracy": metrics.accuracy_score(labels, answers),
        "balanced accuracy": recalls.mean(),
        "macro F1": metrics.f1_score(labels, answers, average="macro", zero_division=0),
        "worst class": recalls.min(),
    }
    assert found == pytest.approx({name: 100 * each for name, each in wanted.items()}, rel=1e-12)


def test_six_images_by_hand() -> None:
    found = PerClass.of(torch.tensor([0, 0, 0, 0, 7, 7]), torch.tensor([0, 0, 0, 0, 0, 7]))
    assert found.rows == [[0, 5, 4, 4], [7, 1, 2, 1]]
    assert found.metrics["accuracy"] == pytest.approx(100 * 5 / 6)
    assert found.metrics["balanced accuracy"] == pytest.approx(100 * (4 / 5 + 1) / 2)
    assert found.metrics["macro F1"] == pytest.approx(100 * (8 / 9 + 2 / 3) / 2)


def test_a_rare_class_that_is_never_answered_is_half_of_the_balanced_accuracy() -> None:
    draw = torch.Generator().manual_seed(0)
    labels = torch.tensor([0] * 95 + [1] * 5)
    features = torch.randn(100, 3, generator=draw)
    features[:, 0] += labels * 0.5
    found = per_class(features, labels, features, labels, LinearProbeOptions(PENALTIES=[10.0]))
    assert found.metrics["accuracy"] == 95
    assert found.metrics["balanced accuracy"] == 50
    assert found.metrics["worst class"] == 0
    assert "training images" in found.details["chosen_on"]
    none = per_class(features, torch.zeros(100), features, labels)
    assert not none.metrics
    assert none.notes
