"""Weights of trunks for RGB images in trunks for others."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from omegaconf import OmegaConf

from sslengine.errors import CheckpointError
from sslengine.models.build import build_model
from sslengine.models.model_state import vissl_state
from sslengine.models.options import ModelOptions
from sslengine.models.weights import init_from_file

CONVNEXT = {"DEPTH": [1, 1, 1, 1], "DIMS": [8, 8, 8, 8]}


def options(channels: int, trunk: dict[str, Any], **weights: Any) -> ModelOptions:
    tree = {"TRUNK": trunk, "INPUT_CHANNELS": channels, "WEIGHTS_INIT": weights}
    made: Any = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(ModelOptions), tree))
    return made  # type: ignore[no-any-return]


@pytest.mark.parametrize("channels", [1, 5])
def test_adapted_as_timm_does(channels: int, tmp_path: Path) -> None:
    """The oracle is timm's own way from its RGB weights to another `in_chans`."""
    theirs = timm.create_model("convnext_atto", pretrained=False)
    torch.save(theirs.state_dict(), tmp_path / "rgb.pth")
    overlay = {"file": str(tmp_path / "rgb.pth")}
    expected = timm.create_model(
        "convnext_atto", pretrained=True, in_chans=channels, pretrained_cfg_overlay=overlay
    )
    whole = {"DEPTH": [2, 2, 6, 2], "DIMS": [40, 80, 160, 320]}
    ours = timm.models.convnext.ConvNeXt(depths=whole["DEPTH"], dims=whole["DIMS"])
    ours.stem.load_state_dict(theirs.stem.state_dict())
    state = {f"trunk.{k}": v for k, v in ours.state_dict().items() if "head.fc" not in k}
    torch.save(state, tmp_path / "trunk.pth")
    made = options(
        channels, {"NAME": "convnext", "CONVNEXT": whole}, PARAMS_FILE=str(tmp_path / "trunk.pth"),
        STATE_DICT_KEY_NAME="", ADAPT_INPUT_CHANNELS=True,
    )  # fmt: skip
    model = build_model(made)
    init_from_file(model, made)
    stem = model.get_parameter("trunk.stem.0.weight")
    assert stem.shape[1] == channels
    assert torch.equal(stem, expected.stem[0].weight)


def test_not_without_being_asked(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trunk = {"NAME": "convnext", "CONVNEXT": CONVNEXT}
    rgb: Any = build_model(options(3, trunk))
    torch.save(vissl_state(rgb), tmp_path / "rgb.torch")
    weights = {"PARAMS_FILE": str(tmp_path / "rgb.torch"),
               "STATE_DICT_KEY_NAME": ["classy_state_dict", "base_model", "model"]}  # fmt: skip
    four = options(4, trunk, **weights)
    with pytest.raises(CheckpointError, match=r"trunk.stem.0.weight takes 3 channels in .*, 4 in the model"
                       r"[\s\S]*ADAPT_INPUT_CHANNELS=true"):  # fmt: skip
        init_from_file(build_model(four), four)
    asked = options(4, trunk, **weights, ADAPT_INPUT_CHANNELS=True)
    with caplog.at_level(logging.WARNING):
        init_from_file(build_model(asked), asked)
    assert "3 channels in" in caplog.text
    same = options(3, trunk, **weights, ADAPT_INPUT_CHANNELS=True)
    model = build_model(same)
    init_from_file(model, same)
    assert torch.equal(model.get_parameter("trunk.stem.0.weight"), rgb.trunk.stem[0].weight)
