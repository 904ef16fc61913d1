"""What is judged, exported and predicted is the feature that the recipe trains."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from sslengine import catalog  # noqa: F401
from sslengine.config.resolve import resolve
from sslengine.config.sections import read
from sslengine.models.build import build_trunk
from sslengine.models.options import ModelOptions
from tests.config.test_shipped import CONFIGS, RUNS


def _reads_class_tokens(name: str) -> bool:
    """Its first head does: by name, or as DINO's does of the ViT's final feature."""
    text = (CONFIGS / f"{name}.yaml").read_text()
    return "feat_names: [lastCLS" in text or ("dino_loss" in text and "_vit" in name)


RECIPES = [name for name in RUNS if _reads_class_tokens(name)]


def test_recipes() -> None:
    methods = {name.rpartition("/")[2].partition("_")[0] for name in RECIPES}
    assert methods == {"dino", "ibot", "dinov2", "dinov3", "msn"}
    assert len(RECIPES) > 12


def _one_block(name: str) -> Any:
    """Its trunk with one block, and random numbers in all parameters."""
    config = resolve([f"config={name}"]).config
    options = read(config, ModelOptions)
    options.TRUNK.TIMM.arguments["depth"] = options.TRUNK.VISION_TRANSFORMERS.NUM_LAYERS = 1
    options.INPUT_CHANNELS = 3
    torch.manual_seed(0)
    trunk = build_trunk(options).eval()
    for parameter in trunk.parameters():
        nn.init.normal_(parameter, std=0.1)
    return trunk


@torch.no_grad()
@pytest.mark.parametrize("name", RECIPES)
def test_class_tokens_are_judged(name: str) -> None:
    """A trunk's output without a name is what `judge`, `export`, `embed` and `predict` read."""
    trunk = _one_block(name)
    images = torch.randn(2, 3, *trunk.patch_embed.img_size)
    final, by_name, mean = trunk(images)[0], *trunk(images, ["lastCLS", "lastPOOL"])
    torch.testing.assert_close(final, by_name)
    assert not torch.allclose(final, mean, atol=1e-2)
