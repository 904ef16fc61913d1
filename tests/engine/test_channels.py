"""Also through the real launch, in tests/integration/test_pixels.py."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from sslengine.engine.build import build_base_model, look_at_data
from sslengine.errors import ConfigError
from tests.config.recipes import resolved


def test_a_model_that_is_built_without_a_launch_takes_what_the_data_has(tmp_path: Path) -> None:
    np.save(tmp_path / "0.npy", np.zeros((8, 8, 5), np.float32))
    made = resolved(
        DATA__TRAIN__DATA_SOURCES=["disk_folder"], DATA__TRAIN__DATA_PATHS=[str(tmp_path)],
        DATA__TRAIN__IMAGE_MODE="stored", DATA__TRAIN__TRANSFORMS=[{"name": "ImgReplicatePil"}, {"name": "ToTensor"}],
    )  # fmt: skip
    model = build_base_model(made.config, torch.device("cpu"))
    assert model.get_parameter("trunk.conv1.weight").shape[1] == 5


def test_two_splits_that_differ(tmp_path: Path) -> None:
    for split, channels in (("train", 5), ("test", 4)):
        (tmp_path / split).mkdir()
        np.save(tmp_path / split / "0.npy", np.zeros((8, 8, channels), np.float32))
    keys = {
        f"DATA__{split}__{key}": value
        for split in ("TRAIN", "TEST")
        for key, value in {
            "DATA_SOURCES": ["disk_folder"], "DATA_PATHS": [str(tmp_path / split.lower())],
            "IMAGE_MODE": "stored", "TRANSFORMS": [{"name": "ImgReplicatePil"}, {"name": "ToTensor"}],
        }.items()
    }  # fmt: skip
    assert look_at_data(resolved(**keys).config).channels == 5  # the test set is not read
    with pytest.raises(ConfigError, match=r"config.MODEL.INPUT_CHANNELS: .*TRAIN 5.*TEST 4"):
        look_at_data(resolved(**keys, TEST_MODEL=True).config)
