"""What is set for a loss that is not chosen has no effect, and a warning says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from sslengine import catalog  # noqa: F401
from sslengine.config.resolve import resolve
from sslengine.config.show import show

ROOT = Path(__file__).resolve().parents[2]
SIMCLR = "config.LOSS.simclr_info_nce_loss.temperature=0.3"
MOCO = "config.LOSS.moco_loss.temperature=0.3"


def warnings(*arguments: str, folder: Path = ROOT / "configs") -> list[str]:
    found = resolve(arguments, [str(folder)]).warnings
    return [each for each in found if "has no effect" in each]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["config=quickstart/dinov2", "+config/dinov3=gram"],
         "config.LOSS.dinov3_loss has no effect: config.LOSS.name is dinov2_loss"),
        (["config=quickstart/simclr", MOCO],
         "config.LOSS.moco_loss has no effect: config.LOSS.name is simclr_info_nce_loss"),
        (["config=quickstart/simclr", "config.METERS.names=[]",
          "config.METERS.accuracy_list_meter.topk_values=[1]"],
         "config.METERS.accuracy_list_meter has no effect: config.METERS.names is empty"),
        (["config=quickstart/simclr", SIMCLR, "config.LOSS.name=CrossEntropyLoss"],
         "config.LOSS.simclr_info_nce_loss has no effect: config.LOSS.name is CrossEntropyLoss"),
    ],
)  # fmt: skip
def test_a_later_section_of_another_component_is_told(arguments: list[str], told: str) -> None:
    assert warnings(*arguments) == [told]


@pytest.mark.parametrize(
    "arguments",
    [
        ["config=quickstart/dinov3", "+config/dinov3=gram"],
        ["config=quickstart/simclr", SIMCLR],
        ["config=quickstart/simclr", "config.LOSS.name=moco_loss", MOCO],
        ["config=quickstart/simclr", "config.LOSS.name=CrossEntropyLoss"],  # the file's section
        ["config=quickstart/mae"],
    ],
)
def test_what_is_chosen_and_what_another_place_chose_away_are_not(arguments: list[str]) -> None:
    assert warnings(*arguments) == []


def test_a_file_may_hold_sections_of_several(tmp_path: Path) -> None:
    """As the file of a run does, and many of VISSL's."""
    run = resolve(["config=quickstart/simclr", "config.LOSS.name=CrossEntropyLoss"])
    assert "simclr_info_nce_loss" in run.config.LOSS
    (tmp_path / "run.yaml").write_text(show(run))
    assert warnings("config=run", folder=tmp_path) == []
