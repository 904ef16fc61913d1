"""The token that hides patches, in files of transformers: loaded if a trunk has one of its width."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from torch import Tensor, nn

from sslengine.models.build import build_model
from sslengine.models.options import ModelOptions
from sslengine.models.weights import init_from_file

SMALL: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
OURS = {"img_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 1, "num_heads": 2}
MASKED = ["data", {"feat_names": ["lastPATCH"], "additional_keys": ["mask"]}]


def started(file: Path, name: str, **arguments: Any) -> Any:
    """A trunk that hides patches, with the weights of the file; its token before that."""
    timm = {"model": name, "arguments": {**OURS, **arguments}}
    tree = {
        "TRUNK": {"NAME": "timm", "TIMM": timm},
        "MULTI_INPUT_HEAD_MAPPING": [MASKED],
        "WEIGHTS_INIT": {"PARAMS_FILE": str(file)},
    }
    options = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(ModelOptions), tree))
    model = build_model(options)
    init_from_file(model, options)
    return model.trunk


@torch.no_grad()
def filled(network: nn.Module) -> tuple[nn.Module, Tensor]:
    token = dict(network.named_parameters())[
        next(name for name, _ in network.named_parameters() if name.endswith("mask_token"))
    ]
    token.copy_(torch.arange(16.0).view_as(token))
    return network, token


def test_of_dinov3(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.DINOv3ViTConfig(
        **SMALL, image_size=16, patch_size=4, intermediate_size=64, num_register_tokens=4
    )
    network, token = filled(transformers.DINOv3ViTModel(config))
    assert token.shape == (1, 1, 16)
    network.save_pretrained(tmp_path)
    trunk = started(tmp_path, "vit_small_patch16_dinov3_qkvb")
    assert torch.equal(trunk.mask_token.flatten(), token.flatten())


@pytest.mark.parametrize("width", [16, 8])
def test_of_masked_image_modeling(width: int, tmp_path: Path) -> None:
    """One of another width is that of a decoder: MAE's."""
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(**SMALL, image_size=16, patch_size=4, intermediate_size=64)
    config.encoder_stride = 4
    network, token = filled(transformers.ViTForMaskedImageModeling(config))
    weights = {**network.state_dict(), "vit.embeddings.mask_token": token[..., :width]}
    torch.save(weights, tmp_path / "pytorch_model.bin")
    trunk = started(tmp_path, "vit_tiny_patch16_224")
    expected = token.flatten() if width == 16 else torch.zeros(16)
    assert torch.equal(trunk.mask_token.flatten(), expected)
