"""Convolutional trunks of VISSL beside the networks of torchvision, timm and Classy Vision."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import classy_vision.models
import pytest
import timm.models.convnext
import timm.models.regnet
import torch
import torchvision
from classy_vision.models.efficientnet import MODEL_PARAMS
from classy_vision.models.efficientnet import EfficientNet as ClassyEfficientNet
from timm.models.convnext import ConvNeXt as TimmConvNeXt
from timm.models.mobilenetv3 import mobilenetv3_large_100
from torch import Tensor, nn
from torchvision.models import alexnet
from torchvision.models.feature_extraction import create_feature_extractor
from torchvision.models.mobilenetv3 import mobilenet_v3_large
from torchvision.models.resnet import Bottleneck
from torchvision.models.resnet import ResNet as ResNetOfTheirs

from sslengine.contrib.trunks.alexnet import LAST_LAYERS, AlexNet
from sslengine.contrib.trunks.mobilenet_v3 import TimmMobileNetV3, TorchvisionMobileNetV3
from sslengine.contrib.trunks.mobilenet_v3_heads import MobileNetV3Head, TimmMobileNetV3Head
from sslengine.models.options import ResNetOptions
from sslengine.models.trunks.aliases import ConvNext, make_convnext
from sslengine.models.trunks.classy import EfficientNetTrunk, RegNetTrunk
from sslengine.models.trunks.options import (
    ConvNextOptions,
    EfficientNetOptions,
    MobileNetOptions,
    RegNetOptions,
)
from sslengine.models.trunks.resnet import ResNet
from sslengine.models.weights.names import read_vissl, write_vissl

from . import checks


def test_features_are_those_of_torchvision() -> None:
    torch.manual_seed(0)
    model, library = AlexNet().eval(), alexnet().eval()
    own = {name: value for name, value in library.state_dict().items() if "classifier" not in name}
    model.load_state_dict(read_vissl(model, own))
    x = torch.randn(2, 3, 96, 64)
    with torch.no_grad():
        found = dict(zip(model.feature_names, model(x, model.feature_names), strict=True))
        for name, layer in LAST_LAYERS.items():
            torch.testing.assert_close(found[name], library.features[: layer + 1](x))
        library.classifier = nn.Identity()
        torch.testing.assert_close(found["flatten"], library(x))
    assert found["flatten"].shape == (2, 9216)


# ---- regnet


RULE = {"depth": 5, "w_0": 16, "w_a": 12.0, "w_m": 2.0, "group_width": 8}
STAGES = {
    "depths": [1, 2],
    "widths": [16, 32],
    "group_widths": [8, 16],
    "bottleneck_multipliers": [1.0, 1.0],
    "strides": [2, 2],
}


def trunk(**options: Any) -> RegNetTrunk:
    torch.manual_seed(0)
    return RegNetTrunk(RegNetOptions(**(options or RULE)))


def with_statistics(model: RegNetTrunk) -> RegNetTrunk:
    """As trained: running statistics and scales are not those of the start."""
    for name, tensor in model.state_dict().items():
        if tensor.is_floating_point() and ("bn" in name or name.endswith(".1.running_var")):
            tensor.uniform_(0.5, 1.5)
    return model.eval()


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({"name": "regnet_y_400mf"}, {"name": "regnet_y_400mf"}),
        (RULE, {"name": "regnet", **RULE}),
        (
            {**RULE, "block_type": "vanilla_block", "stem_type": "res_stem_in", "stem_width": 8},
            {
                "name": "regnet",
                **RULE,
                "block_type": "vanilla_block",
                "stem_type": "res_stem_in",
                "stem_width": 8,
            },
        ),
        ({"name": "anynet", **STAGES, "activation": "silu"}, {**STAGES, "activation": "silu"}),
        ({"name": "anynet", **STAGES, "use_se": False}, {**STAGES, "use_se": False}),
    ],
)
def test_features_are_those_of_classy_vision(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    model = with_statistics(trunk(**ours))
    whole = classy_vision.models.build_model({"name": "anynet", **theirs}).eval()
    whole.stem.load_state_dict(model.stem.state_dict())
    whole.trunk_output.load_state_dict(model.trunk_output.state_dict())
    x = torch.randn(2, 3, 48, 32)
    with torch.no_grad():
        stem = whole.stem(x)
        stages = [stem]
        for stage in whole.trunk_output:
            stages.append(stage(stages[-1]))
        mean = stages[-1].mean((2, 3))
        expected = [*stages, mean[..., None, None], mean]
        found = model(x, model.feature_names)
        for feature, other in zip(found, expected, strict=True):
            torch.testing.assert_close(feature, other)
        # What classy-vision itself computes from one end to the other.
        torch.testing.assert_close(found[-3], whole.trunk_output(whole.stem(x)))


def test_vissl_names_are_those_that_timm_reads() -> None:
    model = with_statistics(trunk(name="regnet_y_400mf"))
    checks.names_round_trip(model)
    names = list(write_vissl(model))
    assert names[0] == "_feature_blocks.conv1.stem.0.weight"
    assert "_feature_blocks.res3.block2-0.proj.weight" in names
    parts = {"trunk": write_vissl(model), "heads": {}}
    file = {"classy_state_dict": {"base_model": {"model": parts}}}
    theirs = timm.create_model("regnety_004", num_classes=0).eval()
    theirs.load_state_dict(timm.models.regnet._filter_fn(file))
    x = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(model(x)[0], theirs(x), atol=1e-4, rtol=1e-4)


# ---- efficientnet


def trunk_efficientnet(**options: Any) -> EfficientNetTrunk:
    torch.manual_seed(0)
    return EfficientNetTrunk(EfficientNetOptions(**options))


def theirs(ours: EfficientNetTrunk, version: str, **options: Any) -> ClassyEfficientNet:
    """Classy Vision's own with the same weights; its forward ends with dropout."""
    arguments = {
        "bn_momentum": 0.01,
        "bn_epsilon": 0.001,
        "drop_connect_rate": 0.2,
        "width_divisor": 8,
        "min_width": None,
        "use_se": True,
    }
    model = ClassyEfficientNet(1, MODEL_PARAMS[version], **{**arguments, **options})
    left = model.load_state_dict(ours.state_dict(), strict=False)
    assert (left.missing_keys, left.unexpected_keys) == (["fc.weight", "fc.bias"], [])
    model.fc = torch.nn.Identity()
    return model


@pytest.mark.parametrize(
    ("version", "options"),
    [("B0", {}), ("B1", {"use_se": False}), ("B0", {"width_divisor": 4, "min_width": 20})],
)
def test_features_are_those_of_classy_vision_efficientnet(
    version: str, options: dict[str, Any]
) -> None:
    ours = trunk_efficientnet(model_version=version, **options)
    other = theirs(ours, version, **options)
    x = torch.randn(2, 3, 64, 48)
    with torch.no_grad():
        torch.testing.assert_close(ours.eval()(x)[0], other.eval()(x))


def test_the_same_blocks_and_values_drop_in_training() -> None:
    ours = trunk_efficientnet(drop_connect_rate=0.5)
    other = theirs(ours, "B0", drop_connect_rate=0.5).train()
    x = torch.randn(4, 3, 32, 32, dtype=torch.float64)
    outputs = []
    for model in (ours.double().train(), other.double()):
        torch.manual_seed(3)
        with torch.no_grad():
            outputs.append(model(x))
    torch.testing.assert_close(outputs[0][0], outputs[1])
    with torch.no_grad():
        assert not torch.allclose(ours(x)[0], outputs[1])


def test_vissl_names() -> None:
    model = trunk_efficientnet()
    checks.names_round_trip(model)
    names = write_vissl(model)
    for name in ("conv1.0.weight", "conv1.1.bias", "block15.bn2.weight", "conv_final.0.weight"):
        assert f"_feature_blocks.{name}" in names
    torch.testing.assert_close(
        names["_feature_blocks.block1.expand_conv.weight"],
        model.blocks.get_submodule("block1-0").expand_conv.weight,
    )


# ---- convnext


DEPTH, DIMS = [1, 2, 1, 1], [8, 16, 24, 32]


def trunk_convnext(**options: Any) -> ConvNext:
    torch.manual_seed(0)
    model = make_convnext(ConvNextOptions(**{"DEPTH": DEPTH, "DIMS": DIMS, **options}))
    for name, parameter in model.named_parameters():
        if name.endswith("gamma"):
            # At their start of 1e-6 blocks would not be seen.
            assert torch.all(parameter == 1e-6)
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    return model


def theirs_convnext(**options: Any) -> TimmConvNeXt:
    return TimmConvNeXt(num_classes=0, depths=DEPTH, dims=DIMS, **options)


@pytest.mark.parametrize("size", [(96, 32)])
def test_features_are_those_of_timm(size: tuple[int, int]) -> None:
    model, library = trunk_convnext().eval(), theirs_convnext().eval()
    library.load_state_dict(model.state_dict())
    x = torch.randn(2, 3, *size)
    with torch.no_grad():
        stages = library.forward_intermediates(x, intermediates_only=True)
        found = model(x, model.feature_names)
        expected = [library.stem(x), *stages, library(x), library(x)]
        for feature, other in zip(found, expected, strict=True):
            torch.testing.assert_close(feature, other)


def test_vissl_names_are_those_of_the_authors() -> None:
    model = trunk_convnext().eval()
    checks.names_round_trip(model)
    named = write_vissl(model)
    for name in ("downsample_layers.0.0.weight", "downsample_layers.3.1.weight", "norm.bias"):
        assert name in named
    assert "stages.1.1.pwconv2.weight" in named
    library = theirs_convnext().eval()
    library.load_state_dict(timm.models.convnext.checkpoint_filter_fn(named, library))
    x = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(model(x)[0], library(x))


# ---- mobilenet v3


Make = Callable[..., TimmMobileNetV3 | TorchvisionMobileNetV3]


def trunk_mobilenet_v3(make: Make, **options: Any) -> TimmMobileNetV3 | TorchvisionMobileNetV3:
    torch.manual_seed(0)
    return make(MobileNetOptions(**options))


def with_statistics_mobilenet_v3(
    model: TimmMobileNetV3 | TorchvisionMobileNetV3,
) -> TimmMobileNetV3 | TorchvisionMobileNetV3:
    """Of running averages that are not at their first values."""
    with torch.no_grad():
        model.train()(torch.randn(4, 3, 64, 64))
    return model.eval()


def of_the_library(state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """VISSL's names are the library's, inside a module."""
    return {prefix + name.removeprefix("model."): tensor for name, tensor in state.items()}


def test_with_its_head_it_is_torchvisions() -> None:
    model, head = (
        with_statistics_mobilenet_v3(trunk_mobilenet_v3(TorchvisionMobileNetV3)),
        MobileNetV3Head().eval(),
    )
    library = mobilenet_v3_large().eval()
    library.load_state_dict(of_the_library(write_vissl(model), "") | head.state_dict())
    x = torch.randn(2, 3, 64, 48)
    with torch.no_grad():
        torch.testing.assert_close(head(model(x)[0]), library(x))
        torch.testing.assert_close(model(x, ["trunk"])[0], library.features(x))


def test_with_its_head_it_is_timms() -> None:
    model, head = (
        with_statistics_mobilenet_v3(trunk_mobilenet_v3(TimmMobileNetV3)),
        TimmMobileNetV3Head().eval(),
    )
    names = {"classifier.0.": "conv_head.", "classifier.4.": "classifier."}
    state = of_the_library(write_vissl(model), "")
    for ours, other in names.items():
        for kind in ("weight", "bias"):
            state[other + kind] = head.state_dict()[ours + kind]
    library = mobilenetv3_large_100().eval()
    library.load_state_dict(state)
    whole = trunk_mobilenet_v3(TimmMobileNetV3, TRUNK_ONLY=False).eval()
    del state["classifier.weight"], state["classifier.bias"]
    whole.load_state_dict(
        read_vissl(whole, {f"model.{name}": each for name, each in state.items()})
    )
    x = torch.randn(2, 3, 64, 48)
    with torch.no_grad():
        features = library.forward_features(x)
        before = library.forward_head(features, pre_logits=True)
        torch.testing.assert_close(head(model(x)[0]), library(x))
        torch.testing.assert_close(model(x, ["trunk"])[0], features)
        torch.testing.assert_close(whole(x)[0], before)
        # Without its last convolution, hard swish alone stands behind the pooling.
        library.conv_head = torch.nn.Identity()
        expected = library.forward_head(features, pre_logits=True)
        torch.testing.assert_close(model(x, ["flatten"])[0], expected)


# ---- resnet


TORCHVISION_NODES = {
    "relu": "conv1", "maxpool": "res1", "layer1": "res2", "layer2": "res3", "layer3": "res4",
    "layer4": "res5", "avgpool": "res5avg", "flatten": "flatten",
}  # fmt: skip
WIDE = {"BLOCKS": [1, 2, 1, 1], "WIDTH_PER_GROUP": 128}
RESNEXT = {"BLOCKS": [1, 2, 1, 1], "GROUPS": 32, "WIDTH_PER_GROUP": 4}


def trunk_resnet(**options: Any) -> ResNet:
    torch.manual_seed(0)
    return ResNet(ResNetOptions(**options))


def small(**options: Any) -> ResNet:
    """A few channels, a block per stage, for 32 pixels."""
    defaults: dict[str, Any] = {"DEPTH": 18, "BLOCKS": [1, 1, 1, 1], "WIDTH_MULTIPLIER": 0.125}
    return trunk_resnet(**{**defaults, "STEM": "small", **options})


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
    ours = trunk_resnet(**options).eval()
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
        state = trunk_resnet(**options).state_dict()
    assert {key: value.shape for key, value in state.items()} == {
        key: value.shape for key, value in expected.items()
    }
    assert list(state) == list(expected)


@pytest.mark.parametrize(("depth", "blocks"), [(152, 50), (200, 66)])
def test_depths(depth: int, blocks: int) -> None:
    with torch.device("meta"):
        made = trunk_resnet(DEPTH=depth)
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
        plain, wide = trunk_resnet(DEPTH=50), trunk_resnet(DEPTH=50, WIDTH_MULTIPLIER=multiplier)
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
    made = trunk_resnet(DEPTH=18)
    for module in made.modules():
        if isinstance(module, nn.Conv2d) and module.weight.numel() > 10_000:
            fan_out = module.weight.shape[0] * module.weight.shape[2] * module.weight.shape[3]
            assert float(module.weight.detach().std()) == pytest.approx(
                (2 / fan_out) ** 0.5, rel=0.05
            )


def test_zero_residual_makes_blocks_the_identity_at_first() -> None:
    made = trunk_resnet(
        DEPTH=50, BLOCKS=[2, 1, 1, 1], WIDTH_MULTIPLIER=0.125, ZERO_INIT_RESIDUAL=True
    )
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
