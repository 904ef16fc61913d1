"""The presets for batches of 32 to 256 images follow the rules of docs/methods.md."""

from __future__ import annotations

from typing import Any

import pytest
from omegaconf import OmegaConf

from sslengine import catalog  # noqa: F401
from sslengine.config.resolve import resolve
from tests.integration.command import ROOT

METHODS = sorted(each.name for each in (ROOT / "configs/forms").iterdir() if each.is_dir())


def options_of(method: str, images: int) -> dict[str, Any]:
    config = resolve([f"config=photos/{method}", f"+config/forms/{method}=batch{images}"]).config
    options: Any = OmegaConf.to_container(config.LOSS[config.LOSS.name])
    return options


@pytest.mark.parametrize("images", [32, 64, 128])
@pytest.mark.parametrize("method", METHODS)
def test_averages_are_over_as_many_images(method: str, images: int) -> None:
    """Those of the teacher, at the start and at the end, and of the centre."""
    usual, preset = options_of(method, 256), options_of(method, images)
    for key in {"momentum", "momentum_end"} & usual.keys():
        expected = (1 - usual[key]) * images / 256
        assert 1 - preset[key] == pytest.approx(expected, rel=0.05), key
    if usual.get("targets", "center") == "center" and "ema_center" in usual:
        expected = usual["ema_center"] ** (images / 256)
        assert preset["ema_center"] == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize(("epochs", "told"), [(10, True), (30, False)])
def test_a_run_shorter_than_the_warm_up_of_a_temperature(epochs: int, told: bool) -> None:
    warnings = resolve(["config=photos/dinov2", f"config.OPTIMIZER.num_epochs={epochs}"]).warnings
    key = "config.LOSS.dinov2_loss.teacher_temp_warmup_epochs is 30, but the run has 10 epochs"
    assert any(key in each for each in warnings) == told
