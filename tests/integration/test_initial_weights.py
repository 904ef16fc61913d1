"""Initial weights of recipes whose authors have others than timm, kind by kind.

facebookresearch/ijepa 52c1ae9, src/models/vision_transformer.py: _init_weights, fix_init_weight;
facebookresearch/capi 98b4fa1, model.py: EncoderDecoder.init_weights.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sslengine import catalog  # noqa: F401
from sslengine.config.resolve import resolve
from sslengine.config.sections import read
from sslengine.engine.build import build_loss
from sslengine.models.build import build_model
from sslengine.models.options import ModelOptions

WIDTH = 96
SIZES = f"HIDDEN_DIM={WIDTH} NUM_HEADS=4 MLP_DIM={2 * WIDTH} NUM_LAYERS=3"
SMALL = [f"config.MODEL.TRUNK.VISION_TRANSFORMERS.{each}" for each in SIZES.split()]
LAST_MAP = re.compile(r"blocks\.(\d+)\.(attn\.proj|mlp\.fc2)\.weight")


def rescaled(name: str, weight: Tensor) -> float:
    last = LAST_MAP.search(name)
    return 0.02 / math.sqrt(2 * (int(last[1]) + 1)) if last else 0.02


def xavier(name: str, weight: Tensor) -> float:
    if "reg_token" in name:
        return 0.02
    rows, columns = weight.flatten(1).shape
    return math.sqrt(2 / (columns + (rows / 3 if "qkv" in name else rows)))


Expected = Callable[[str, Tensor], float]
OF: dict[str, tuple[Expected, tuple[str, ...]]] = {
    "ijepa": (rescaled, tuple(f"config.LOSS.ijepa_loss.predictor_{each}" for each in (
        "dim=64", "layers=3", "heads=4"))),
    "capi": (xavier, ("config.LOSS.capi_loss.predictor_layers=1",
                      "config.LOSS.capi_loss.predictor_heads=4")),
}  # fmt: skip


def made(recipe: str, *changes: str) -> tuple[Any, Any]:
    """(the trunk of a recipe at a smaller width, its method)."""
    config = resolve([f"config={recipe}", *SMALL, *changes]).config
    torch.manual_seed(0)
    model: Any = build_model(read(config, ModelOptions))
    method: Any = build_loss(config, 16, torch.device("cpu"))
    method.attach(model)
    return model.trunk, method


def assert_deviations(module: nn.Module, expected: Expected) -> None:
    for name, each in module.named_parameters():
        if name.endswith("bias") or "norm" in name:
            assert each.unique().numel() == 1 or "patch_embed" in name, name
        elif each.requires_grad:
            tolerance = 4 / math.sqrt(2 * each.numel())
            assert each.std().item() == pytest.approx(expected(name, each), rel=tolerance), name


@pytest.mark.parametrize(
    ("method", "recipe"),
    [
        ("ijepa", "pretrain/ijepa/ijepa_16gpu_vith14"),
        ("ijepa", "photos/ijepa"),
        ("capi", "pretrain/capi/capi_32gpu_vitl14"),
        ("capi", "photos/capi"),
    ],
)
def test_deviations_are_the_authors(method: str, recipe: str) -> None:
    expected, changes = OF[method]
    trunk, made_method = made(recipe, *changes)
    assert_deviations(trunk, expected)
    if method == "ijepa":
        assert_deviations(made_method.predictor, expected)
        assert not trunk.patch_embed.proj.bias.any()


def test_timms_are_what_they_were() -> None:
    """Of which the rows of docs/methods.md are."""
    trunk, method = made("quickstart/ijepa", *OF["ijepa"][1])
    for part in (trunk, method.predictor):
        for name, each in part.named_parameters():
            if LAST_MAP.search(name):
                assert each.std().item() == pytest.approx(0.02, rel=0.05)
