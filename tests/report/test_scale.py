"""Numbers in drawings: round steps, short texts, series that are thinned and smoothed."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sslengine.report.scale import (
    Axis,
    fit_axis,
    format_number,
    format_points,
    keep_records,
    smooth_series,
)

FINITE = st.floats(-1e9, 1e9).filter(lambda value: value == 0 or abs(value) > 1e-9)


@pytest.mark.parametrize(
    ("value", "text"),
    [(2.5512, "2.551"), (79.6, "79.6"), (1024.3, "1,024"), (3.39e-8, "3.39e-8"), (0.0875, "0.0875"),
     (1.2e9, "1.2e9"), (0, "0"), (-0.8192, "-0.8192"), (math.nan, "NaN")],
)  # fmt: skip
def test_numbers_have_the_digits_that_count(value: float, text: str) -> None:
    assert format_number(value).replace("\N{MINUS SIGN}", "-") == text


def test_a_difference_of_nearly_nothing_has_no_minus() -> None:
    assert format_points(-0.02) == "0.0"
    assert format_points(1.25, signed=True) == "+1.2"


@given(FINITE, FINITE)
def test_steps_of_an_axis_are_1_2_or_5(one: float, other: float) -> None:
    axis = fit_axis(min(one, other), max(one, other), 0, 100)
    ticks = axis.ticks(5)
    assert 1 <= len(ticks) <= 6
    assert all(axis.low - 1e-6 <= value <= axis.high + 1e-6 * abs(axis.high) for value, _ in ticks)
    assert len({text for _, text in ticks}) == len(ticks)
    if len(ticks) > 1:
        step = ticks[1][0] - ticks[0][0]
        assert f"{step:.0e}"[0] in "125"


def test_an_axis_of_logarithms_has_powers_of_ten() -> None:
    assert [text for _, text in Axis(1e-5, 1, 0, 100, log=True).ticks(6)][-2:] == ["0.1", "1"]
    assert Axis(0.01, 1, 0, 100, log=True).at(0.1) == 50


def test_a_value_outside_of_an_axis_is_put_at_its_end() -> None:
    assert Axis(0, 1, 10, 20).at(53) == 20
    assert Axis(0, 1, 10, 20).at(math.nan) == 10


@given(st.lists(st.floats(allow_nan=True, allow_infinity=False), min_size=1, max_size=500))
def test_thinning_keeps_the_ends_and_the_extremes(values: list[float]) -> None:
    kept = keep_records(values, 20)
    assert kept[0] == 0
    assert kept[-1] == len(values) - 1
    assert len(kept) <= 24
    finite = [value for value in values if math.isfinite(value)]
    if finite:
        assert {min(finite), max(finite)} <= {values[i] for i in kept}


def test_medians_leave_out_a_spike_and_keep_a_slope() -> None:
    values = [float(i) for i in range(100)]
    values[50] = 1e6
    epochs, smooth = smooth_series(list(range(100)), values, 7, 400)
    assert max(smooth) == 99
    assert smooth[20:40] == values[20:40]
    assert len(epochs) == 100
    assert len(smooth_series(list(range(10_000)), [0.0] * 10_000, 7, 400)[0]) <= 400
