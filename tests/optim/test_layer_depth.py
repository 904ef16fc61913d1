from __future__ import annotations

import pytest
import timm
import torchvision

from sslengine.errors import ConfigError
from sslengine.optim.layer_depth import layer_depth


def test_vit_as_timm_names_it() -> None:
    model = timm.create_model("vit_tiny_patch16_224", depth=3, num_classes=0)
    names = [f"trunk.{name}" for name, _ in model.named_parameters()] + ["heads.0.clf.weight"]
    depth = layer_depth(names)
    assert depth.is_vit
    assert depth.last == 3
    depths = {name: depth.of(name) for name in names}
    for name, expected in {
        "trunk.cls_token": 0,
        "trunk.pos_embed": 0,
        "trunk.patch_embed.proj.weight": 0,
        "trunk.blocks.0.attn.qkv.weight": 1,
        "trunk.blocks.2.norm1.bias": 3,
        "trunk.norm.weight": 3,
        "heads.0.clf.weight": 4,
    }.items():
        assert depths[name] == expected, name


def test_vit_inside_another_module() -> None:
    depth = layer_depth(
        ["trunk.base_model.patch_embed.proj.weight", "trunk.base_model.blocks.10.x"]
    )
    assert depth.of("trunk.base_model.blocks.10.x") == 11
    assert depth.of("trunk.base_model.patch_embed.proj.weight") == 0


@pytest.mark.parametrize("prefix", ["trunk", "trunk._feature_blocks"])
def test_resnet_as_torchvision_names_it(prefix: str) -> None:
    model = torchvision.models.resnet18()
    names = [f"{prefix}.{name}" for name, _ in model.named_parameters()]
    depth = layer_depth(names)
    assert (depth.is_vit, depth.last) == (False, 4)
    for name, expected in {
        "conv1.weight": 0,
        "bn1.bias": 0,
        "layer1.0.conv1.weight": 1,
        "layer2.0.downsample.1.weight": 2,
        "layer4.1.bn2.bias": 4,
    }.items():
        assert depth.of(f"{prefix}.{name}") == expected, name
    assert depth.of("heads.0.clf.0.weight") == 5


@pytest.mark.parametrize(
    "names",
    [
        ["trunk.patch_embed.proj.weight", "trunk.layers.0.blocks.1.attn.qkv.weight"],  # Swin
        ["trunk.stem.0.weight", "trunk.stages.0.blocks.0.conv_dw.weight"],  # ConvNeXt
        ["trunk.conv_stem.weight", "trunk.blocks.0.0.conv.weight"],  # EfficientNet
        ["heads.0.weight"],
    ],
)
def test_other_trunks_are_refused(names: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"lr_decay reads layers from parameter names.*: "):
        layer_depth(names)
