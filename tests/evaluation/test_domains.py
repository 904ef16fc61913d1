"""Domains left out in turn, against scikit-learn's LeaveOneGroupOut."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from sklearn.model_selection import LeaveOneGroupOut, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from sslengine.contrib.domains import FOLDS, leave_one_domain_out
from sslengine.evaluation.options import LinearProbeOptions

ONE = LinearProbeOptions(PENALTIES=[0.1], PENALTY_ON="sum")


def images(domains: int, count: int = 120) -> tuple[torch.Tensor, torch.Tensor, list[str]]:
    """Three classes, whose features each domain moves."""
    draw = torch.Generator().manual_seed(0)
    labels, places = torch.arange(count) % 3, torch.arange(count) // 3 % domains
    moved = torch.randn(domains, 4, generator=draw)[places]
    features = 1.2 * torch.eye(4)[labels] + moved + torch.randn(count, 4, generator=draw)
    return features, labels, [f"camera {place}" for place in places.tolist()]


def test_each_domain_is_left_out_once() -> None:
    features, labels, domains = images(4)
    found = leave_one_domain_out(*(features, labels, domains) * 2, ONE)
    pipeline = make_pipeline(StandardScaler(), LogisticRegression(C=10, tol=1e-8, max_iter=5000))
    answers = cross_val_predict(
        pipeline, features.double().numpy(), labels.numpy(), groups=domains, cv=LeaveOneGroupOut()
    )
    right, own = answers == labels.numpy(), np.array(domains)
    each = [100 * right[own == name].mean() for name in np.unique(own)]
    f1 = f1_score(labels, answers, average="macro")
    wanted = {
        "accuracy": 100 * right.mean(), "macro F1": 100 * f1,
        "mean of domains": np.mean(each), "worst domain": min(each),
    }  # fmt: skip
    assert found.metrics == pytest.approx(wanted)
    assert [of["accuracy"] for of in found.details["domains"].values()] == pytest.approx(each)
    assert {of["images"] for of in found.details["domains"].values()} == {30}
    assert "held-out" in found.details["chosen_on"]


def test_many_domains_are_left_out_together() -> None:
    features, labels, domains = images(40)
    found = leave_one_domain_out(*(features, labels, domains) * 2, ONE)
    assert len(found.details["penalties"]) == FOLDS
    assert len(found.details["domains"]) == 40


def test_a_domain_of_the_test_images_alone_and_a_single_one() -> None:
    features, labels, domains = images(2)
    elsewhere = ["elsewhere"] * len(labels)
    found = leave_one_domain_out(features, labels, domains, features, labels, elsewhere, ONE)
    assert found.metrics["accuracy"] == found.metrics["worst domain"] > 40
    none = leave_one_domain_out(*(features, labels, elsewhere) * 2, ONE)
    assert none.notes == ("Domains: all training images are of the domain 'elsewhere'.",)
