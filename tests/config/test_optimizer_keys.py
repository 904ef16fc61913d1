from __future__ import annotations

from typing import Any

import pytest

from tests.config.recipes import resolved

CURVE = {"name": "constant", "value": 0.1}


def warnings(**changes: Any) -> list[str]:
    found = resolved(OPTIMIZER__param_schedulers__lr=CURVE, **changes).warnings
    return [each for each in found if "OPTIMIZER" in each]


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [("adamw", "nesterov", True), ("adamw", "momentum", 0.5), ("sgd", "betas", [0.8, 0.9]),
     ("rmsprop", "nesterov", True), ("torch.optim:NAdam", "momentum", 0.5)],
)  # fmt: skip
def test_what_an_optimizer_does_not_take_is_said(name: str, key: str, value: Any) -> None:
    (warning,) = warnings(OPTIMIZER__name=name, **{f"OPTIMIZER__{key}": value})
    assert f"config.OPTIMIZER.{key} has no effect: {name} has no {key}" in warning


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [("sgd", "nesterov", True), ("adamw", "betas", [0.8, 0.9]), ("lars", "momentum", 0.5),
     ("adamw", "momentum", 0.9), ("torch.optim:NAdam", "betas", [0.8, 0.9])],
)  # fmt: skip
def test_what_has_an_effect_or_is_a_default_is_not(name: str, key: str, value: Any) -> None:
    assert warnings(OPTIMIZER__name=name, **{f"OPTIMIZER__{key}": value}) == []
