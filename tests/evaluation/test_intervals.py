"""Intervals against scipy and a bootstrap that is written out."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats  # type: ignore[import-untyped]

from sslengine.evaluation import intervals
from sslengine.evaluation.intervals import of_accuracy, of_resamples


@pytest.mark.parametrize(("right", "count"), [(0, 3), (3, 3), (17, 40), (1660, 2000)])
def test_of_an_accuracy(right: int, count: int) -> None:
    found = of_accuracy(100 * right / count, count)
    tested = stats.binomtest(right, count).proportion_ci(0.95, "wilson")
    assert found == pytest.approx([100 * tested.low, 100 * tested.high], abs=1e-4)
    if count > 1000:  # as resampled images
        drawn = np.random.default_rng(0).binomial(count, right / count, 20_000) / count
        assert found == pytest.approx(100 * np.percentile(drawn, [2.5, 97.5]), abs=0.2)


def test_of_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    values = torch.from_numpy(np.random.default_rng(0).normal(size=400))
    found = of_resamples(lambda some: float(values[some].mean()), values)
    wanted = stats.t.interval(0.95, 399, values.mean(), values.std() / 20)
    assert found == pytest.approx(wanted, abs=0.02)
    assert of_resamples(lambda some: float("nan"), values) == []
    monkeypatch.setattr(intervals, "SORTED", 1000)
    assert of_resamples(lambda some: 1.0, values) == []
