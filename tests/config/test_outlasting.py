from __future__ import annotations

from pathlib import Path

import pytest

from sslengine import catalog  # noqa: F401
from sslengine.config.resolve import resolve
from sslengine.config.run_folder import open_run
from sslengine.config.show import show
from tests.config.recipes import resolved

KEY = "config.LOSS.dinov2_loss.teacher_temp_warmup_epochs is 30, but the run has 10 epochs"


@pytest.mark.parametrize(
    ("length", "told"), [("num_epochs=10", True), ("num_epochs=30", False), ("num_iterations=9", False)]
)  # fmt: skip
def test_a_run_shorter_than_the_warm_up_of_a_temperature(length: str, told: bool) -> None:
    warnings = resolve(["config=photos/dinov2", f"config.OPTIMIZER.{length}"]).warnings
    assert any(KEY in each for each in warnings) == told


@pytest.mark.parametrize("judged", [True, False])
def test_a_run_that_is_judged_is_not_trained(judged: bool, tmp_path: Path) -> None:
    trained = resolve(["config=photos/dinov2", "config.OPTIMIZER.num_epochs=10"])
    (tmp_path / "config.yaml").write_text(show(trained))
    warnings = open_run(tmp_path, judged=judged).warnings
    assert any(KEY in each for each in warnings) != judged


@pytest.mark.parametrize(("frozen", "warned"), [(1, False), (2, True), (5, True)])
def test_what_is_frozen_for_the_whole_run(frozen: int, warned: bool) -> None:
    run = resolved(MODEL__TEMP_FROZEN_PARAMS_EPOCH_MAP=[["trunk.*", frozen]])
    said = f"trunk.* is frozen for {frozen} epochs, and the run has 2"
    assert any(said in each and "it is never trained" in each for each in run.warnings) == warned
