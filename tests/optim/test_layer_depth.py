"""timm's own groups with layer decay are what ours are compared with."""

from __future__ import annotations

import re
from itertools import groupby
from typing import Any

import pytest
import timm
import torch
import torchvision
from timm.optim import param_groups_layer_decay
from torch import nn

from sslengine import catalog  # noqa: F401
from sslengine.config.sections import read
from sslengine.errors import ConfigError
from sslengine.models.build import build_model
from sslengine.models.options import ModelOptions, TrunkOptions, VisionTransformerOptions
from sslengine.optim.layer_depth import layer_depth
from sslengine.optim.options import OptimizerOptions
from sslengine.optim.param_groups import build_param_groups
from tests.config.recipes import resolved


def model_of(trunk: nn.Module) -> nn.ModuleDict:
    return nn.ModuleDict({"trunk": trunk, "heads": nn.ModuleList([nn.Linear(4, 2)])})


def ours(model: nn.Module) -> dict[int, float]:
    """The factor of each parameter's learning rate."""
    options = OptimizerOptions(param_group_constructor="lr_decay")
    options.layer_wise_lr_decay.decay = 0.5
    groups = build_param_groups(model, options)
    return {id(p): group["lr_scale"] for group in groups for p in group["params"]}


def timms(net: nn.Module) -> dict[int, float]:
    groups: Any = param_groups_layer_decay(net, layer_decay=0.5)
    return {id(p): group["lr_scale"] for group in groups for p in group["params"]}


SMALL: dict[str, dict[str, Any]] = {
    "vit_tiny_patch16_224": {"depth": 3, "embed_dim": 12, "num_heads": 3},
    "convnext_tiny": {"depths": (1, 1, 2, 1), "dims": (4, 8, 8, 16)},
    "swin_tiny_patch4_window7_224": {"depths": (1, 2, 1, 1), "embed_dim": 6,
                                     "num_heads": (1, 1, 2, 2)},
    "beit_base_patch16_224": {"depth": 2, "embed_dim": 12, "num_heads": 3},
    "resnet18": {"channels": (4, 4, 8, 8)},
}  # fmt: skip


@pytest.mark.parametrize("name", SMALL)
def test_a_trunk_of_timms_is_grouped_as_timm_groups_it(name: str) -> None:
    net = timm.create_model(name, num_classes=2, **SMALL[name])
    expected = timms(net)
    for trunk in (net, nn.Sequential(net)):
        found = ours(model_of(trunk))
        assert {each: found[each] for each in expected} == expected
        assert len(set(expected.values())) > 3


@pytest.mark.parametrize("wrapped", [False, True])
def test_resnet_as_torchvision_names_it(wrapped: bool) -> None:
    """By stages, as VISSL has it."""
    net = torchvision.models.resnet18()
    prefix = "trunk._feature_blocks" if wrapped else "trunk"
    depth = layer_depth(model_of(nn.ModuleDict({"_feature_blocks": net}) if wrapped else net))
    assert (depth.is_vit, depth.heads) == (False, 5)
    for name, expected in {
        "conv1.weight": 0,
        "bn1.bias": 0,
        "layer1.0.conv1.weight": 1,
        "layer2.0.downsample.1.weight": 2,
        "layer4.1.bn2.bias": 4,
    }.items():
        assert depth.find(f"{prefix}.{name}") == expected, name
    assert depth.find("heads.0.weight") == 5


@pytest.mark.parametrize(
    ("name", "timms", "block"),
    [
        ("vit_b_16", "vit_base_patch16_224", r"encoder\.layers\.encoder_layer_(\d+)\."),
        ("efficientnet_b0", "efficientnet_b0", r"features\.([1-7]\.\d+)\."),
    ],
)
def test_torchvisions_blocks_are_as_deep_as_those_of_timm(
    name: str, timms: str, block: str
) -> None:
    """The same networks, so the same depths: of what is before blocks, in each, and behind them."""
    chosen = {"NAME": "torchvision", "TORCHVISION": {"model": name}}
    config = resolved(MODEL__TRUNK=chosen, MODEL__HEAD={"PARAMS": []}).config
    with torch.device("meta"):
        found = layer_depth(build_model(read(config, ModelOptions)))
        net: Any = timm.create_model(timms)
    expected = layer_depth(model_of(net))
    sequence = [[depth for depth, _ in groupby(each.values())] for each in (
        {n: d for n, d in found.depths.items() if "pos_emb" not in n},
        {n: d for n, d in expected.depths.items() if not re.search("head|classifier", n)},
    )]  # fmt: skip
    assert sequence[0] == sequence[1]
    assert found.heads == expected.heads
    inside = {m[1] for n in found.depths if (m := re.match(rf"trunk\.{block}", n))}
    assert len(inside) == found.heads - 1


@pytest.mark.parametrize(
    "trunk", [nn.Linear(2, 2), nn.ModuleDict({"blocks": nn.ModuleList([nn.Linear(2, 2)])})]
)
def test_other_trunks_are_refused(trunk: nn.Module) -> None:
    with pytest.raises(ConfigError, match="lr_decay cannot number the layers(?s:.)*: tru"):
        layer_depth(model_of(trunk))


def test_tokens_of_a_vit_are_embeddings() -> None:
    """Mask tokens and registers, as in the authors' DINOv2; timm's patterns name neither."""
    vit = VisionTransformerOptions(
        IMAGE_SIZE=8, PATCH_SIZE=4, NUM_LAYERS=2, NUM_HEADS=2, HIDDEN_DIM=8, MLP_DIM=8,
        REGISTER_TOKENS=2,
    )  # fmt: skip
    routes = [["view", {"feat_names": ["lastCLS"], "additional_keys": ["mask"]}]]
    model = build_model(ModelOptions(
        TRUNK=TrunkOptions("vision_transformer", VISION_TRANSFORMERS=vit),
        MULTI_INPUT_HEAD_MAPPING=routes,
    ))  # fmt: skip
    depth = layer_depth(model)
    tokens = ("mask_token", "reg_token", "cls_token", "pos_embed", "patch_embed.proj.weight")
    assert [depth.find(f"trunk.{name}") for name in tokens] == [0] * 5
    assert depth.find("trunk.blocks.1.mlp.fc1.weight") == depth.heads - 1 == 2
