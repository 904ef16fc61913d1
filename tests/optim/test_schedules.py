"""Every curve against its closed formula; every mistake against its message."""

from __future__ import annotations

import math
from typing import Any

import pytest

from sslengine.errors import ConfigError, UnknownNameError
from sslengine.optim.schedules import (
    Curve,
    build_curve,
    build_schedule,
    schedule,
)
from sslengine.registry import SCHEDULERS, register_scheduler
from tests.registries import as_before

WHERES = [0.0, 1e-4, 0.1, 0.25, 0.3334, 0.5, 0.66, 0.75, 0.9, 0.9999]


WAVES = {"start_value": 1.0, "end_value": 0.0, "restart_interval_length": 0.5}


def cosine(start: float, end: float, where: float) -> float:
    return end + 0.5 * (start - end) * (1 + math.cos(math.pi * where))


@pytest.mark.parametrize("where", WHERES)
def test_smooth_curves(where: float) -> None:
    def value(name: str, **arguments: float) -> float:
        return build_curve(name, arguments, num_epochs=10)(where)

    assert value("constant", value=0.3) == 0.3
    assert value("linear", start_value=0.2, end_value=1.0) == pytest.approx(0.2 + 0.8 * where)
    assert value("cosine", start_value=0.8, end_value=0.1) == pytest.approx(cosine(0.8, 0.1, where))
    assert value("polynomial", base_value=2.0, power=0.9) == pytest.approx(2 * (1 - where) ** 0.9)


def test_multistep_changes_at_its_milestones() -> None:
    curve = build_curve("multistep", {"values": [1.0, 0.1, 0.01], "milestones": [3, 6]}, 10)
    by_epoch = [curve(epoch / 10) for epoch in range(10)]
    assert by_epoch == [1.0] * 3 + [0.1] * 3 + [0.01] * 4
    assert curve(0.2999) == 1.0  # the last steps of epoch 2


@pytest.mark.parametrize(("epochs", "last"), [(0.5, 1.0), (3, 1.0), (4, 0.1), (7, 0.01)])
def test_milestones_that_a_short_run_does_not_reach_do_nothing(epochs: float, last: float) -> None:
    curve = build_curve("multistep", {"values": [1.0, 0.1, 0.01], "milestones": [3, 6]}, epochs)
    assert curve(0.0) == 1.0
    assert curve(0.999) == last


def test_multistep_without_milestones_takes_equal_shares() -> None:
    curve = build_curve("multistep", {"values": [3.0, 2.0, 1.0]}, 9)
    assert [curve(epoch / 9) for epoch in range(9)] == [3.0] * 3 + [2.0] * 3 + [1.0] * 3


def test_steps_divide_training_equally() -> None:
    curve = build_curve("step", {"values": [4.0, 2.0, 1.0, 0.5]}, 8)
    assert [curve(where) for where in (0.0, 0.24, 0.25, 0.5, 0.76)] == [4.0, 4.0, 2.0, 1.0, 0.5]
    gamma = build_curve(
        "step_with_fixed_gamma", {"base_value": 1.0, "num_decays": 2, "gamma": 0.5}, 7.5
    )
    assert [gamma(where) for where in (0.0, 0.34, 0.67, 0.99)] == [1.0, 0.5, 0.25, 0.25]


def test_inverse_sqrt() -> None:
    curve = build_curve("inverse_sqrt", {"start_value": 4.8, "warmup_interval_length": 0.1}, 10)
    for where in (0.05, 0.1, 0.4, 0.9):
        assert curve(where) == pytest.approx(4.8 * math.sqrt(0.1 / where))
    assert curve(0.1) == pytest.approx(4.8)
    assert curve(0.0) == pytest.approx(4.8 * math.sqrt(0.1))
    bare = build_curve("inverse_sqrt", {"start_value": 4.8, "warmup_interval_length": 0.0}, 10)
    assert (bare(0.0), bare(0.25)) == pytest.approx((4.8, 9.6))


def restarts(where: float, **options: float | str | bool) -> float:
    arguments = {"start_value": 4.0, "end_value": 0.5, **options}
    return build_curve("cosine_warm_restart", arguments, 10)(where)


@pytest.mark.parametrize("where", WHERES)
def test_half_waves(where: float) -> None:
    n, phase = int(where / 0.25), where / 0.25 - int(where / 0.25)
    options = {"restart_interval_length": 0.25, "wave_type": "half"}
    assert restarts(where, **options) == pytest.approx(cosine(4.0, 0.5, phase))
    assert restarts(where, **options, lr_multiplier=0.6) == pytest.approx(
        cosine(4.0 * 0.6**n, 0.5, phase)
    )
    peak = cosine(4.0, 0.5, n * 0.25)
    assert restarts(where, **options, is_adaptive=True) == pytest.approx(cosine(peak, 0.5, phase))


@pytest.mark.parametrize("where", WHERES)
def test_full_waves(where: float) -> None:
    r = 0.2
    options = {"restart_interval_length": r, "wave_type": "full"}
    n = math.floor((where / r + 1) / 2)  # the peak that is nearest
    assert restarts(where, **options) == pytest.approx(cosine(4.0, 0.5, where / r))
    assert restarts(where, **options, lr_multiplier=0.5) == pytest.approx(
        cosine(4.0 * 0.5**n, 0.5, where / r)
    )
    peak = cosine(4.0, 0.5, 2 * n * r if n else r)
    assert restarts(where, **options, is_adaptive=True) == pytest.approx(
        cosine(peak, 0.5, where / r)
    )


def test_composite_rescales_or_fixes_each_part() -> None:
    parts = [
        {"name": "linear", "start_value": 0.0, "end_value": 1.0},
        {"name": "cosine", "start_value": 1.0, "end_value": 0.0},
    ]
    arguments = {"schedulers": parts, "lengths": [0.2, 0.8]}
    rescaled = build_curve("composite", arguments, 10)
    fixed = build_curve("composite", {**arguments, "interval_scaling": ["rescaled", "fixed"]}, 10)
    assert rescaled(0.1) == fixed(0.1) == pytest.approx(0.5)
    assert rescaled(0.6) == pytest.approx(cosine(1.0, 0.0, (0.6 - 0.2) / 0.8))
    assert fixed(0.6) == pytest.approx(cosine(1.0, 0.0, 0.6))
    assert arguments["lengths"] == [0.2, 0.8]


def test_a_part_that_restarts_does_not_start_at_its_end() -> None:
    """A composite reaches its next part a millionth early."""
    parts = [{"name": "constant", "value": 1.0}, {"name": "cosine_warm_restart", **WAVES}]
    curve = build_curve("composite", {"schedulers": parts, "lengths": [0.1, 0.9]}, 10)
    assert curve(0.1 - 5e-7) == pytest.approx(1.0)


def test_milestones_inside_a_composite_count_epochs_of_the_whole_run() -> None:
    parts = [
        {"name": "linear", "start_value": 0.0, "end_value": 1.0},
        {"name": "multistep", "values": [1.0, 0.1], "milestones": [8]},
    ]
    arguments = {
        "schedulers": parts,
        "lengths": [0.1, 0.9],
        "interval_scaling": ["rescaled", "fixed"],
    }
    curve = build_curve("composite", arguments, 10)
    assert [curve(epoch / 10) for epoch in (1, 7, 8, 9)] == [1.0, 1.0, 0.1, 0.1]


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("cosin", {}, r"name: there is no scheduler named 'cosin'. Did you mean 'cosine'"),
        ("cosine", {"start_value": 1.0}, r"^end_value: cosine requires this argument"),
        ("linear", {"start_value": 1.0, "end_valu": 2.0}, r"^end_valu: .*Did you mean 'end_value'"),
        ("multistep", {"values": [1.0] * 11}, r"^values: .*got 11 for 10 epochs"),
        ("multistep", {"values": [1.0, 2.0], "milestones": [3, 4]}, "^milestones: expected 1"),
        ("multistep", {"values": [1.0] * 3, "milestones": [4, 4]}, "^milestones: .*increasing"),
        ("inverse_sqrt", {"start_value": 1.0, "warmup_interval_length": -1.0}, "rejects"),
        ("cosine_warm_restart", {**WAVES, "restart_interval_length": 0.0}, "^restart_interval_l"),
        ("cosine_warm_restart", {**WAVES, "wave_type": "hal"}, "^wave_type"),
    ],
)
def test_mistakes_are_told_with_their_key(name: str, arguments: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_curve(name, arguments, 10)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lengths": [0.5, 0.6]}, "rejects"),
        ({"lengths": [0.0, 1.0]}, r"^lengths: expected shares above 0"),
        ({"interval_scaling": ["fixed"]}, "^interval_scaling"),
        (
            {"schedulers": [{"name": "constant", "value": 1.0}, {"name": "constan"}]},
            r"^schedulers.1.name: there is no scheduler named 'constan'",
        ),
    ],
)
def test_mistakes_in_a_composite_are_told_with_their_place(change: dict, message: str) -> None:
    good = {"schedulers": [{"name": "constant", "value": 1.0}] * 2, "lengths": [0.5, 0.5]}
    build_curve("composite", good, 10)
    with pytest.raises(ConfigError, match=message):
        build_curve("composite", {**good, **change}, 10)


def test_a_curve_of_ones_own() -> None:
    with as_before(SCHEDULERS):

        @register_scheduler("sawtooth_of_the_test")
        def sawtooth(start_value: float, num_epochs: float) -> Curve:
            return lambda where: start_value * (1 - where * num_epochs % 1)

        curve = build_curve("sawtooth_of_the_test", {"start_value": 2.0}, 4)
        assert curve(0.375) == pytest.approx(1.0)
        with pytest.raises(ConfigError, match=r"^num_epochs: .* takes no such argument"):
            build_curve("sawtooth_of_the_test", {"start_value": 2.0, "num_epochs": 3}, 4)
        with pytest.raises(UnknownNameError):
            build_curve("sawtooth", {}, 4)


# ---- when values are set


@pytest.mark.parametrize(
    ("settings", "interval"),
    [
        ({"name": "constant", "value": 1.0}, "epoch"),
        ({"name": "multistep", "values": [1.0]}, "epoch"),
        ({"name": "step", "values": [1.0]}, "epoch"),
        ({"name": "step_with_fixed_gamma", "base_value": 1.0, "num_decays": 1, "gamma": 1}, "step"),
        ({"name": "linear", "start_value": 1.0, "end_value": 0.0}, "step"),
    ],
)  # fmt: skip
def test_interval(settings: dict[str, Any], interval: str) -> None:
    assert build_schedule(schedule(**settings), 10).interval == interval
    for chosen in ("step", "epoch"):
        options = schedule(**settings, update_interval=chosen)
        assert build_schedule(options, 10).interval == chosen
