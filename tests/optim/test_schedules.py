from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch

from sslengine.errors import ConfigError
from sslengine.optim.schedules import (
    SchedulerOptions,
    build_schedule,
    schedule,
    schedule_problems,
)
from sslengine.registry import SCHEDULERS, register_scheduler
from tests.registries import as_before


def test_a_schedule_takes_the_arguments_that_its_curve_knows() -> None:
    options = schedule(name="linear", start_value=0.0, end_value=2.0)
    assert build_schedule(options, 10).value(0.25) == pytest.approx(0.5)


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


def test_an_argument_that_is_not_set_is_not_made_up() -> None:
    with pytest.raises(ConfigError, match="^start_value: cosine requires this argument"):
        build_schedule(schedule(name="cosine", end_value=0.4), 10)


def test_further_arguments() -> None:
    options = schedule(name="constant", args={"value": 3.0})
    assert build_schedule(options, 10).value(0.0) == 3.0
    wrong = schedule(name="constant", value=1.0, args={"other": 3.0})
    assert list(schedule_problems(wrong, 10, "a.b")) == [
        "a.b.other: constant takes no such argument. It takes: value."
    ]


def test_a_scheduler_must_be_named() -> None:
    (problem,) = schedule_problems(SchedulerOptions(), 10, "a.b")
    assert problem.startswith("a.b.name: there is no scheduler named ''.")
    assert "cosine" in problem


class _Stateful:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, where: float) -> float:
        self.calls += 1
        return 1.0 / self.calls


@pytest.mark.parametrize(
    ("curve", "message"),
    [
        (lambda where: None, r"gives None at where = 0, .* expected a finite number, 0 or more"),
        (torch.tensor, r"gives tensor\(0.\) at where = 0"),
        (lambda where: 0.1 if where < 0.6 else math.nan, r"gives nan at where = 0.609375"),
        (lambda where: 0.5 - where, r"gives -0.015625 at where = 0.515625"),
        (_Stateful(), r"gives 1.0 at where = 0, .* and then 0.5; expected"),
        (lambda: 0.1, r"fails at where = 0: TypeError"),
    ],
    ids=["none", "tensor", "nan", "negative", "stateful", "without where"],
)
def test_a_scheduler_of_ones_own_gives_a_number_everywhere(curve: Any, message: str) -> None:
    with as_before(SCHEDULERS):
        register_scheduler("mine")(lambda: curve)
        (problem,) = schedule_problems(schedule("mine"), 10, "a.b")
    assert re.match(f"a.b.name: mine {message}", problem)
