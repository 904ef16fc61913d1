"""Trunks with random weights, ready to be exported: nothing is trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from sslengine.config.sections import read
from sslengine.export.subject import Subject
from sslengine.models.build import build_trunk
from sslengine.models.options import ModelOptions
from tests.config.recipes import resolved

SIDE = 32
MEAN, STD = [0.5, 0.4, 0.3], [0.2, 0.3, 0.4]
TEST_VIEW = [
    {"name": "Resize", "size": 37, "interpolation": 3},
    {"name": "CenterCrop", "size": SIDE},
    {"name": "ToTensor"},
    {"name": "Normalize", "mean": MEAN, "std": STD},
]
SMALL_VIT = {"img_size": SIDE, "patch_size": 8, "depth": 2, "embed_dim": 32, "num_heads": 2}


def timm_vit(**arguments: Any) -> dict[str, Any]:
    """config.MODEL.TRUNK of a small vision transformer of timm's."""
    model = {"model": "vit_tiny_patch16_224", "arguments": {**SMALL_VIT, **arguments}}
    return {"NAME": "timm", "TIMM": model}


def subject(trunk: dict[str, Any], channels: int = 3, **changes: Any) -> Subject:
    """All parameters and statistics are random: what is left out of an export shows."""
    config = resolved(
        MODEL__TRUNK=trunk,
        MODEL__INPUT_CHANNELS=channels,
        **{"DATA__TEST__TRANSFORMS": TEST_VIEW, **changes},
    ).config
    options = read(config, ModelOptions)
    torch.manual_seed(0)
    network = build_trunk(options).eval().requires_grad_(False)
    for name, each in network.state_dict().items():
        if each.is_floating_point():
            spread = each.std().item() if each.numel() > 1 else 0.0
            each.add_(torch.randn_like(each) * (0.3 * spread or 0.1))
            if name.endswith("running_var"):
                each.abs_().add_(0.5)
    return Subject(network, "model", Path("none"), Path("none"), config, options)
