"""Rank correlations against scipy, and their intervals."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from sslengine.evaluation.label_free.ranking import agreement, kendall, spearman

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


def test_both_values_of_a_checkpoint_are_resampled_together() -> None:
    draw = np.random.default_rng(3)
    x = draw.normal(size=25)
    found = agreement(spearman, x, x + 0.3 * draw.normal(size=25))
    assert found is not None
    assert 0.7 < found.low < found.value < found.high < 1


def test_equal_orders_and_opposite_ones() -> None:
    x = [1.0, 2.0, 3.0, 5.0, 8.0]
    found = agreement(spearman, x, [2 * each for each in x])
    assert found is not None
    assert found[:3] == pytest.approx((1, 1, 1))
    found = agreement(kendall, x, [-each for each in x])
    assert found is not None
    assert found[:3] == pytest.approx((-1, -1, -1))


def test_too_few_checkpoints_or_values_have_none() -> None:
    assert agreement(spearman, [1.0, 2.0], [1.0, 2.0]) is None
    assert agreement(spearman, [1.0, 2.0, math.nan], [1.0, 2.0, 3.0]) is None
    found = agreement(spearman, [1.0, 2.0, math.nan, 4.0], [1.0, 2.0, 3.0, 5.0])
    assert found is not None
    assert found.n == 3
