"""The sections NEAREST_NEIGHBOR and LINEAR_PROBE: their defaults, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from sslengine.evaluation.linear import linear_probe
from sslengine.evaluation.options import LinearProbeOptions, NearestNeighborOptions, published


def test_the_defaults_are_those_of_vissl_but_for_the_cosine() -> None:
    options = NearestNeighborOptions()
    assert (options.SIGMA, options.TOPK, options.L2_NORM_FEATS) == (0.1, 200, True)


def test_the_defaults_have_no_problems() -> None:
    assert [*NearestNeighborOptions().check(), *LinearProbeOptions().check()] == []


def test_one_number_of_neighbours_or_several() -> None:
    assert NearestNeighborOptions(TOPK=20).neighbours == [20]
    assert NearestNeighborOptions(TOPK=[10, 20]).neighbours == [10, 20]
    assert list(NearestNeighborOptions(TOPK=[10, 20]).check()) == []


def test_l2_norm_feats_chooses_the_similarity() -> None:
    assert NearestNeighborOptions().metric == "cosine"
    assert NearestNeighborOptions(L2_NORM_FEATS=False).metric == "dot"


@pytest.mark.parametrize("topk", [0, -1, True, "200", [], [20, 0], 2.5, None])
def test_a_wrong_number_of_neighbours(topk: Any) -> None:
    (problem,) = NearestNeighborOptions(TOPK=topk).check()
    assert problem.startswith("TOPK: expected a number of neighbours")
    assert repr(topk) in problem


def test_sigma_is_positive() -> None:
    (problem,) = NearestNeighborOptions(SIGMA=0.0).check()
    assert problem == "SIGMA: expected a number above 0, got 0."


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"PENALTIES": []}, "PENALTIES: expected numbers above 0, got []."),
        ({"PENALTIES": [1.0, 0.0]}, "PENALTIES: expected numbers above 0, got [1.0, 0.0]."),
        ({"HELD_OUT": 1.0}, "HELD_OUT: expected a share between 0 and 1, got 1."),
        ({"MAX_ITERATIONS": 0}, "MAX_ITERATIONS: expected 1 or more, got 0."),
    ],
)
def test_a_wrong_probe(changes: dict[str, Any], problem: str) -> None:
    assert list(LinearProbeOptions(**changes).check()) == [problem]


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
