from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sslengine.monitor.store import KEPT, Series

NUMBERS = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60)


@given(NUMBERS, st.integers(1, 80))
def test_windows_are_numpys(values: list[float], window: int) -> None:
    series = Series(window)
    series.extend(values)
    last = values[-window:]
    assert series.median() == series.median(window) == pytest.approx(float(np.median(last)))
    assert series.average() == pytest.approx(float(np.mean(last)), abs=1e-6)
    assert series.global_average() == pytest.approx(float(np.mean(values)), abs=1e-6)
    assert (series.latest(), series.values(window), len(series)) == (values[-1], last, len(values))


def test_the_mean_is_of_all_values_and_the_rest_of_those_that_are_kept() -> None:
    series = Series(window=2)
    series.extend([float(n) for n in range(KEPT + 5)])
    assert series.values()[0] == 5.0
    assert len(series) == KEPT + 5
    assert series.global_average() == (KEPT + 4) / 2


def test_a_larger_window_keeps_more() -> None:
    series = Series(window=2)
    series.extend([float(n) for n in range(KEPT)])
    series.window = KEPT + 50
    series.extend([1.0] * 50)
    assert len(series.values()) == KEPT + 50


def test_a_nan_is_not_smoothed_away() -> None:
    series = Series(window=3)
    series.extend((1.0, math.nan, 2.0))
    assert math.isnan(series.median())
    assert series.median(1) == 2.0


def test_state_goes_round() -> None:
    series = Series(window=3)
    series.extend((4.0, 1.0, 7.0, 3.0))
    again = Series.restore(series.state_dict())
    for each in (series, again):
        each.extend((2.0,))
    assert again.state_dict() == series.state_dict()
    assert again.median() == 3.0
