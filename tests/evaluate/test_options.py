"""Sections of evaluation: their defaults, and the values that are refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from sslengine.config.sections import section_problems
from sslengine.engines.options import RetrievalOptions
from sslengine.evaluate.linear import linear_probe
from sslengine.evaluate.options import (
    CorruptionOptions,
    CostOptions,
    EvaluateOptions,
    LinearProbeOptions,
    LowShotOptions,
    NearestNeighborOptions,
    ReferenceOptions,
    SvmOptions,
    published,
)

SECTIONS = (
    EvaluateOptions, LinearProbeOptions, NearestNeighborOptions, RetrievalOptions, SvmOptions,
)  # fmt: skip
NO_COUNTS = (0, -1, True, "200", [], [20, 0], 2.5, None)


def test_the_defaults_are_those_of_vissl_but_for_the_cosine() -> None:
    options = NearestNeighborOptions()
    assert (options.SIGMA, options.TOPK, options.L2_NORM_FEATS) == (0.1, 200, True)


@pytest.mark.parametrize(
    ("options", "keys"),
    [
        *((each(), []) for each in SECTIONS),
        (NearestNeighborOptions(TOPK=[10, 20]), []),
        *((NearestNeighborOptions(TOPK=each), ["TOPK"]) for each in NO_COUNTS),
        (LinearProbeOptions(PENALTIES=[]), ["PENALTIES"]),
        (ReferenceOptions(MEAN=[0.5]), ["MEAN, STD"]),
        (CorruptionOptions(KINDS=["fogg"], SEVERITIES=[6]), ["KINDS.0", "SEVERITIES.0"]),
        (CorruptionOptions(KINDS=[], SEVERITIES=[]), ["KINDS", "SEVERITIES"]),
        (EvaluateOptions(PROTOCOLS=["svm", "knn"], DTYPE="int8"), ["DTYPE", "PROTOCOLS.1"]),
        (SvmOptions(loss="hinge", dual=False), ["loss"]),
        (SvmOptions(costs=CostOptions(costs_list=[])), ["costs"]),
        (LowShotOptions(sample_inds=[]), ["sample_inds"]),
        (RetrievalOptions(IMG_SCALINGS=[]), ["IMG_SCALINGS"]),
        (RetrievalOptions(FEATS_PROCESSING_TYPE="rmac", TRAIN_PCA_WHITENING=False), ["TRAIN_PCA_WHITENING"]),
    ],
)  # fmt: skip
def test_the_keys_that_are_wrong(options: Any, keys: list[str]) -> None:
    assert [each.partition(":")[0] for each in section_problems(options)] == keys


def test_the_published_protocol_of_dinov2() -> None:
    """Its 45 values of C are numpy's logspace; scikit-learn's C is 1 / penalty of the sum."""
    neighbours, probe = published("dinov2", NearestNeighborOptions(), LinearProbeOptions())
    assert (neighbours.SIGMA, neighbours.neighbours) == (0.07, [10, 20, 100, 200])
    costs = [1 / each for each in probe.PENALTIES]
    np.testing.assert_allclose(costs, np.logspace(-6, 5, 45))
    assert (probe.PENALTY_ON, probe.HELD_OUT, probe.STANDARDISE) == ("sum", 0.1, False)
    draw = np.random.default_rng(0)
    labels = np.arange(90) % 3
    features = np.eye(3)[labels] + draw.normal(size=(90, 3)) + 5
    seen, wanted = torch.from_numpy(features), torch.from_numpy(labels)
    sets = seen[:60], wanted[:60], seen[60:], wanted[60:]
    found = linear_probe(*sets, replace(probe, PENALTIES=probe.PENALTIES[20:30]))
    judge = LogisticRegression(C=1 / found.penalty, tol=1e-9, max_iter=5000)
    score = judge.fit(features[:60], labels[:60]).score(features[60:], labels[60:])
    assert found.test_accuracy == pytest.approx(100 * score)
    assert found.chosen_on == "6 of 60 training images"
