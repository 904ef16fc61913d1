from __future__ import annotations

import pytest

from sslengine import catalog  # noqa: F401
from sslengine.config.resolve import resolve

KEY = "config.LOSS.dinov2_loss.teacher_temp_warmup_epochs is 30, but the run has 10 epochs"


@pytest.mark.parametrize(
    ("length", "told"), [("num_epochs=10", True), ("num_epochs=30", False), ("num_iterations=9", False)]
)  # fmt: skip
def test_a_run_shorter_than_the_warm_up_of_a_temperature(length: str, told: bool) -> None:
    warnings = resolve(["config=photos/dinov2", f"config.OPTIMIZER.{length}"]).warnings
    assert any(KEY in each for each in warnings) == told
