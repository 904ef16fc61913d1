from __future__ import annotations

from typing import Any

import pytest

from sslengine.optim.schedules import (
    build_schedule,
    schedule,
)


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
