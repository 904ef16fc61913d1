from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torchvision
from torch import Tensor, nn
from torchvision.models.feature_extraction import create_feature_extractor
from torchvision.models.resnet import Bottleneck
from torchvision.models.resnet import ResNet as ResNetOfTheirs

from sslengine.models.options import ResNetOptions
from sslengine.models.trunks.resnet import ResNet

TORCHVISION_NODES = {
    "relu": "conv1", "maxpool": "res1", "layer1": "res2", "layer2": "res3", "layer3": "res4",
    "layer4": "res5", "avgpool": "res5avg", "flatten": "flatten",
}  # fmt: skip
WIDE = {"BLOCKS": [1, 2, 1, 1], "WIDTH_PER_GROUP": 128}
RESNEXT = {"BLOCKS": [1, 2, 1, 1], "GROUPS": 32, "WIDTH_PER_GROUP": 4}


def trunk(**options: Any) -> ResNet:
    torch.manual_seed(0)
    return ResNet(ResNetOptions(**options))


def small(**options: Any) -> ResNet:
    """A few channels, a block per stage, for 32 pixels."""
    defaults: dict[str, Any] = {"DEPTH": 18, "BLOCKS": [1, 1, 1, 1], "WIDTH_MULTIPLIER": 0.125}
    return trunk(**{**defaults, "STEM": "small", **options})


def without_classifier(model: nn.Module) -> dict[str, Tensor]:
    return {key: value for key, value in model.state_dict().items() if not key.startswith("fc.")}


@pytest.mark.parametrize(
    ("theirs", "options"),
    [
        (torchvision.models.resnet18, {"DEPTH": 18}),
        (torchvision.models.resnet50, {"DEPTH": 50, "ZERO_INIT_RESIDUAL": True}),
        (partial(ResNetOfTheirs, Bottleneck, [1, 2, 1, 1], width_per_group=128), WIDE),
        (partial(ResNetOfTheirs, Bottleneck, [1, 2, 1, 1], groups=32, width_per_group=4), RESNEXT),
    ],
    ids=["resnet18", "resnet50", "wide", "resnext"],
)
def test_names_and_features_are_those_of_torchvision(
    theirs: Callable[[], nn.Module], options: dict[str, Any]
) -> None:
    torch.manual_seed(1)
    model = theirs().eval()
    ours = trunk(**options).eval()
    ours.load_state_dict(without_classifier(model), strict=True)
    x = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        expected = create_feature_extractor(model, TORCHVISION_NODES)(x)
        features = ours(x, ResNet.feature_names)
    for name, feature in zip(ResNet.feature_names, features, strict=True):
        torch.testing.assert_close(feature, expected[name])


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("resnet34", {"DEPTH": 34}),
        ("resnet101", {"DEPTH": 101}),
        ("wide_resnet50_2", {"DEPTH": 50, "WIDTH_PER_GROUP": 128}),
        ("resnext101_32x8d", {"DEPTH": 101, "GROUPS": 32, "WIDTH_PER_GROUP": 8}),
    ],
)
def test_names_and_shapes_of_larger_ones(name: str, options: dict[str, Any]) -> None:
    with torch.device("meta"):
        expected = without_classifier(getattr(torchvision.models, name)())
        state = trunk(**options).state_dict()
    assert {key: value.shape for key, value in state.items()} == {
        key: value.shape for key, value in expected.items()
    }
    assert list(state) == list(expected)


@pytest.mark.parametrize(("depth", "blocks"), [(152, 50), (200, 66)])
def test_depths(depth: int, blocks: int) -> None:
    with torch.device("meta"):
        made = trunk(DEPTH=depth)
    assert sum(len(getattr(made, f"layer{stage}")) for stage in (1, 2, 3, 4)) == blocks


@pytest.mark.parametrize(("block", "times"), [("basic", 1), ("bottleneck", 4)])
def test_channels_of_each_stage(block: str, times: int) -> None:
    made = small(WIDTH_MULTIPLIER=1.0, CHANNELS=[4, 12, 8, 40], BLOCK=block)
    found = made(torch.zeros(1, 3, 32, 32), ["conv1", "res2", "res3", "res4", "res5", "flatten"])
    channels = [each.shape[1] for each in found]
    assert channels == [4, *(times * each for each in (4, 12, 8, 40, 40))]


@pytest.mark.parametrize("multiplier", [0.25, 2.0, 3.0])
def test_the_multiplier_is_on_every_channel_count(multiplier: float) -> None:
    with torch.device("meta"):
        plain, wide = trunk(DEPTH=50), trunk(DEPTH=50, WIDTH_MULTIPLIER=multiplier)
    for (name, tensor), other in zip(
        plain.state_dict().items(), wide.state_dict().values(), strict=True
    ):
        # Channel counts are the first two sizes of a convolution and the only one of a norm.
        scaled = [
            size if (name == "conv1.weight" and axis == 1) or axis > 1 else int(size * multiplier)
            for axis, size in enumerate(tensor.shape)
        ]
        assert list(other.shape) == scaled, name


def test_initial_weights() -> None:
    made = trunk(DEPTH=18)
    for module in made.modules():
        if isinstance(module, nn.Conv2d) and module.weight.numel() > 10_000:
            fan_out = module.weight.shape[0] * module.weight.shape[2] * module.weight.shape[3]
            assert float(module.weight.detach().std()) == pytest.approx(
                (2 / fan_out) ** 0.5, rel=0.05
            )


def test_zero_residual_makes_blocks_the_identity_at_first() -> None:
    made = trunk(DEPTH=50, BLOCKS=[2, 1, 1, 1], WIDTH_MULTIPLIER=0.125, ZERO_INIT_RESIDUAL=True)
    x = torch.rand(2, 32, 8, 8)
    torch.testing.assert_close(made.layer1[1](x), x)
    assert not torch.equal(small(BLOCKS=[2, 1, 1, 1]).layer1[1](x[:, :8]), x[:, :8])


def test_the_small_stem_keeps_the_resolution() -> None:
    conv1, res1, res2, res5 = small()(torch.randn(1, 3, 32, 32), ["conv1", "res1", "res2", "res5"])
    assert conv1.shape == (1, 8, 32, 32)
    assert torch.equal(conv1, res1)
    assert (res2.shape[-1], res5.shape[-1]) == (32, 4)


def test_stride_of_the_last_stage() -> None:
    res4, res5 = small(LAYER4_STRIDE=1)(torch.randn(1, 3, 32, 32), ["res4", "res5"])
    assert res4.shape[-1] == res5.shape[-1] == 8


@pytest.mark.parametrize("norm", ["LayerNorm", "GroupNorm"])
def test_norms_that_do_not_look_at_the_batch(norm: str) -> None:
    made = small(NORM=norm, GROUPNORM_GROUPS=4)
    groups = 1 if norm == "LayerNorm" else 4
    x = torch.randn(2, 8, 5, 5)
    grouped = x.view(2, groups, -1).double()
    mean, std = grouped.mean(2, keepdim=True), grouped.var(2, correction=0, keepdim=True).sqrt()
    expected = ((grouped - mean) / std).view_as(x).float()
    torch.testing.assert_close(made.bn1(x), expected, atol=1e-4, rtol=1e-4)
    assert not any(isinstance(module, nn.BatchNorm2d) for module in made.modules())
    images = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(made(images)[0][:1], made(images[:1])[0])


def test_stages_behind_the_wanted_feature_do_not_run() -> None:
    made = small()
    made.layer3.register_forward_hook(lambda *_: pytest.fail("layer3 ran"))
    made(torch.randn(1, 3, 32, 32), ["res3"])
