"""Through the real launch in tests/integration/test_pixels.py."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sslengine.data.options import SplitOptions
from sslengine.data.sources.base import DataSource
from sslengine.launch.pixels import settle_pixels
from tests.config.recipes import resolved


def test_usual_images_change_nothing() -> None:
    run = resolved()
    assert settle_pixels(run) is run


@pytest.mark.parametrize("speaks", [True, False])
def test_channels_of_the_data_are_settled_in_every_process(
    tmp_path: Path, speaks: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "0.npy", np.zeros((8, 8, 5), np.float32))
    run = resolved(
        DATA__TRAIN__DATA_SOURCES=["disk_folder"], DATA__TRAIN__DATA_PATHS=[str(tmp_path)],
        DATA__TRAIN__IMAGE_MODE="stored", DATA__TRAIN__TRANSFORMS=[{"name": "ImgReplicatePil"}, {"name": "ToTensor"}],
    )  # fmt: skip
    found = settle_pixels(run, speaks)
    assert found.config.MODEL.INPUT_CHANNELS == 5
    assert run.config.MODEL.INPUT_CHANNELS == "auto"
    assert "derived" in found.origins["config.MODEL.INPUT_CHANNELS"]
    assert ("5 channels of float32" in capsys.readouterr().out) == speaks


class Heavy(DataSource):
    def __init__(self, options: SplitOptions, split: str, position: int = 0) -> None:
        raise AssertionError("built before the launch")

    def __len__(self) -> int:
        return 1

    def image(self, index: int) -> Image.Image:
        raise NotImplementedError


def test_a_source_of_ones_own_is_not_built_before_the_launch() -> None:
    run = resolved(
        DATA__TRAIN__DATA_SOURCES=[f"{__name__}:Heavy"], DATA__TRAIN__DATA_PATHS=["/none"]
    )
    assert settle_pixels(run) is run
