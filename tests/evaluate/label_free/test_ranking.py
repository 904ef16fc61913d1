"""Label-free metrics over checkpoints: orders, and how well they agree with scores."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.neighbors import KNeighborsClassifier
from torch import Tensor

from sslengine import catalog  # noqa: F401 - declares the metrics
from sslengine.evaluate.label_free.metric import Inputs, Measured, measure
from sslengine.evaluate.label_free.ranking import (
    OVER,
    SCORE,
    RankedRow,
    agreement,
    kendall,
    probe_of,
    ranked,
    score_of,
    spearman,
)

CLASSES, IMAGES, VIEWS = 16, 320, 4
LABELS = torch.arange(IMAGES) % CLASSES


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape)))


def table(family: Sequence[Inputs]) -> dict[str, RankedRow]:
    scores = [score_of(each.features, LABELS) for each in family]
    probes = [probe_of(each.features, LABELS) for each in family]
    return {row.name: row for row in ranked([measure(each) for each in family], scores, probes)}


def rho(row: RankedRow) -> float:
    assert row.spearman is not None, row.name
    return row.spearman.value


def test_cuts_of_the_rank() -> None:
    """Identity features of classes, of which ever fewer dimensions are left."""
    whole = torch.eye(CLASSES)[LABELS] + 0.1 * draw(IMAGES, CLASSES)
    family = []
    for left in (16, 12, 8, 5, 3):
        cut = whole.clone()
        cut[:, left:] = 0
        family.append(Inputs(cut))
    rows = table(family)
    assert rows[SCORE].order == [0, 1, 2, 3, 4]
    for name in ("rankme", "effective_rank", "stable_rank", "nesum", "participation_ratio"):
        assert rows[name].order == [0, 1, 2, 3, 4], name
        assert rows[name].spearman == pytest.approx((1, 1, 1, 5)), name
        assert rows[name].kendall == pytest.approx((1, 1, 1, 5)), name
    # docs/label_free.md has these numbers.
    for name, value in (("id_est", -0.7), ("cluster_learnability", 0.3), ("clid", 1)):
        assert rho(rows[name]) == pytest.approx(value), name
    assert rho(rows["uniformity"]) == pytest.approx(1)
    assert rows["alpha_req"].order == []
    assert rows["alpha_req"].spearman is None
    assert rows["linear"].order == [0, 1, 2, 3, 4]
    assert (rows["linear"].spearman, rows["linear"].linear) == (pytest.approx((1, 1, 1, 5)), None)
    assert rows["rankme"].linear == pytest.approx((1, 1, 1, 5))
    assert "not computed" in rows["lidar"].values[0].why


def test_growing_noise() -> None:
    """It spreads features over more dimensions, so metrics of rank have the order backwards."""
    noise, eye = draw(IMAGES, VIEWS, 40), torch.eye(40)[LABELS, None]
    family = []
    for level in (0.1, 0.25, 0.32, 0.4, 0.5):
        views = eye + level * noise
        family.append(Inputs(views[:, 0], views=views, projections=views))
    rows = table(family)
    assert rows[SCORE].order == [0, 1, 2, 3, 4]
    for name in ("alignment", "view_consistency", "clid", "cluster_learnability", "id_est"):
        assert rows[name].order == [0, 1, 2, 3, 4], name
        assert rho(rows[name]) == pytest.approx(1), name
    for name in ("rankme", "stable_rank", "nesum", "participation_ratio", "uniformity", "lidar"):
        assert rows[name].order == [4, 3, 2, 1, 0], name
        assert rho(rows[name]) == pytest.approx(-1), name
    assert rows["two_nn"].order == []
    assert rho(rows["two_nn"]) == pytest.approx(-1)  # of the dimension: it has no direction


def test_the_score_is_scikit_learns() -> None:
    features = torch.eye(CLASSES)[LABELS] + 0.5 * draw(IMAGES, CLASSES)
    order = torch.randperm(IMAGES, generator=torch.Generator().manual_seed(0))
    train, test = order[:160], order[160:]
    unit = torch.nn.functional.normalize(features).numpy()
    # Votes of exp(cosine / 0.1), as `judge` counts them.
    made = KNeighborsClassifier(20, metric="cosine", weights=lambda far: np.exp(-far / 0.1))
    made.fit(unit[train], LABELS[train])
    expected = 100 * made.score(unit[test], LABELS[test])
    assert score_of(features, LABELS).value == pytest.approx(expected)
    assert 20 < expected < 95


def test_labels_that_give_no_score() -> None:
    features = torch.randn(30, 4)
    assert "no labels" in score_of(features, None).why
    assert "several classes" in score_of(features, torch.ones(30, 3)).why
    assert "two classes" in score_of(features, torch.tensor([-1, 3] * 15)).why
    some = torch.tensor([-1, 0, 1] * 10)
    assert score_of(features, some).n == 10  # half of those that have one


def test_values_that_are_missing_are_left_out_of_the_order() -> None:
    nan = Measured(math.nan, 5, "why")
    found = [{"id_est": each} for each in (Measured(4.0), nan, Measured(2.0), Measured(3.0))]
    score, row = ranked(found, [Measured(each) for each in (10.0, 20.0, 30.0, 20.0)])
    assert row.order == [2, 3, 0]
    assert row.spearman is not None
    assert row.spearman[0] == pytest.approx(1)
    assert row.spearman.n == 3
    assert score.order == [2, 1, 3, 0]


def test_clid_over_checkpoints() -> None:
    def part(learnability: float, dimension: float) -> dict[str, Measured]:
        details = {"learnability": learnability, "dimension": dimension}
        return {"clid": Measured(0.5, 9, details=details)}

    found = [part(0.5, 10), part(0.7, 12), {"clid": Measured(math.nan, 9, "why")}, part(0.6, 17)]
    none = [Measured(math.nan)] * 4
    rows = {row.name: row for row in ranked(found, none)}
    values = [each.value for each in rows[OVER].values]
    assert values[:2] + values[3:] == pytest.approx([-2.2438, 0.8851, 1.3587], abs=1e-4)
    assert math.isnan(values[2])
    assert "3 checkpoints" in ranked(found[:2], none[:2])[2].values[0].why


# ---- Rank correlations against scipy, and their intervals.


some = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=3, max_size=12)


@given(pairs=some)
def test_correlations_are_scipys_also_with_ties(pairs: list[tuple[int, int]]) -> None:
    x, y = np.array(pairs, float).T
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        assert agreement(spearman, x, y) is None
        return
    expected = scipy.stats.spearmanr(x, y).statistic
    assert spearman(x[None], y[None])[0] == pytest.approx(expected, abs=1e-12)
    expected = scipy.stats.kendalltau(x, y).statistic
    assert kendall(x[None], y[None])[0] == pytest.approx(expected, abs=1e-12)


def test_the_interval_is_of_resampled_checkpoints() -> None:
    """Of a mean it is known: 1.96 standard errors on both sides."""
    x = np.random.default_rng(3).normal(size=400)
    found = agreement(lambda rows, _: rows.mean(axis=-1), x, x)
    assert found is not None
    error = x.std() / 20
    assert found.value == pytest.approx(x.mean())
    assert (found.value - found.low) / error == pytest.approx(1.96, abs=0.15)
    assert (found.high - found.value) / error == pytest.approx(1.96, abs=0.15)
    assert found.n == 400


def test_too_few_checkpoints_or_values_have_none() -> None:
    assert agreement(spearman, [1.0, 2.0], [1.0, 2.0]) is None
    assert agreement(spearman, [1.0, 2.0, math.nan], [1.0, 2.0, 3.0]) is None
    found = agreement(spearman, [1.0, 2.0, math.nan, 4.0], [1.0, 2.0, 3.0, 5.0])
    assert found is not None
    assert found.n == 3
