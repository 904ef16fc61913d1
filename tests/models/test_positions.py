from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf

from sslengine.errors import CheckpointError
from sslengine.models.build import build_model
from sslengine.models.model import Model
from sslengine.models.options import ModelOptions
from sslengine.models.weights import init_from_file, vissl_state

TRUNKS: dict[str, dict[str, Any]] = {
    "class token": {"NAME": "vision_transformer"},
    "patches alone": {
        "NAME": "vision_transformer",
        "VISION_TRANSFORMERS": {"USE_CLASS_TOKEN": False},
    },
    "convit": {"NAME": "convit", "CONVIT": {"N_GPSA_LAYERS": 1}},
}


def _build(which: str, size: int, file: str = "", width: int = 32) -> tuple[Model, ModelOptions]:
    small = {
        "IMAGE_SIZE": size, "PATCH_SIZE": 16, "HIDDEN_DIM": width, "NUM_LAYERS": 2, "NUM_HEADS": 4,
        "MLP_DIM": 64,
    }  # fmt: skip
    tree = OmegaConf.merge(
        OmegaConf.structured(ModelOptions),
        {"TRUNK": {"VISION_TRANSFORMERS": small}, "WEIGHTS_INIT": {"PARAMS_FILE": file}},
        {"TRUNK": TRUNKS[which]},
    )
    options = OmegaConf.to_object(tree)
    assert isinstance(options, ModelOptions)
    return build_model(options), options


@pytest.mark.parametrize("size", [32, 112])
@pytest.mark.parametrize("which", TRUNKS)
def test_a_file_for_other_images_makes_what_timm_makes_of_them(
    which: str, size: int, tmp_path: Path
) -> None:
    """timm's forward resizes the embeddings of images that are not of the model's size."""
    source, _ = _build(which, 64)
    torch.nn.init.normal_(source.trunk.pos_embed)
    torch.save(vissl_state(source), tmp_path / "weights.torch")
    model, options = _build(which, size, str(tmp_path / "weights.torch"))
    images = torch.randn(2, 3, size, size)
    init_from_file(model, options)
    assert model.trunk.pos_embed.shape != source.trunk.pos_embed.shape
    expected = source.eval()([images])
    for ours, theirs in zip(model.eval()([images]), expected, strict=True):
        torch.testing.assert_close(ours, theirs)
    assert torch.isfinite(expected[0]).all()


def test_another_width_is_still_refused(tmp_path: Path) -> None:
    source, _ = _build("class token", 64, width=16)
    torch.save(vissl_state(source), tmp_path / "weights.torch")
    model, options = _build("class token", 32, str(tmp_path / "weights.torch"))
    with pytest.raises(CheckpointError, match=r"trunk.pos_embed: shape \(1, 17, 16\) in the file"):
        init_from_file(model, options)
