from __future__ import annotations

from typing import Any

import classy_vision.models
import pytest
import timm.models.regnet
import torch
import torchvision

from sslengine.errors import ConfigError
from sslengine.models.trunks.options import RegNetOptions
from sslengine.models.trunks.regnet import RegNet
from sslengine.models.vissl_names import to_vissl

from . import checks

RULE = {"depth": 5, "w_0": 16, "w_a": 12.0, "w_m": 2.0, "group_width": 8}
STAGES = {
    "depths": [1, 2],
    "widths": [16, 32],
    "group_widths": [8, 16],
    "bottleneck_multipliers": [1.0, 1.0],
    "strides": [2, 2],
}


def trunk(**options: Any) -> RegNet:
    torch.manual_seed(0)
    return RegNet(RegNetOptions(**(options or RULE)))


def with_statistics(model: RegNet) -> RegNet:
    """As trained: running statistics and scales are not those of the start."""
    for name, tensor in model.state_dict().items():
        if tensor.is_floating_point() and ("bn" in name or name.endswith(".1.running_var")):
            tensor.uniform_(0.5, 1.5)
    return model.eval()


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({"name": "regnet_y_400mf"}, {"name": "regnet_y_400mf"}),
        ({"name": "regnet_x_400mf"}, {"name": "regnet_x_400mf"}),
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


def in_torchvision(name: str) -> str:
    for ours, theirs in (
        (".proj.", ".proj.0."),
        ("-0.bn.", "-0.proj.1."),
        (".f.c.", ".f.c.0."),
        (".f.final_bn.", ".f.c.1."),
        ("stem.stem.", "stem."),
        ("excitation.0", "fc1"),
        ("excitation.2", "fc2"),
    ):
        name = name.replace(ours, theirs)
    return name


def test_the_network_is_that_of_torchvision() -> None:
    """An implementation that shares nothing with the one that we take."""
    model = with_statistics(trunk(name="regnet_y_400mf"))
    theirs = torchvision.models.regnet_y_400mf(num_classes=1).eval()
    theirs.fc = torch.nn.Identity()
    theirs.load_state_dict({in_torchvision(name): t for name, t in model.state_dict().items()})
    x = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(model(x)[0], theirs(x))


def test_vissl_names_are_those_that_timm_reads() -> None:
    model = with_statistics(trunk(name="regnet_y_400mf"))
    checks.names_round_trip(model)
    names = list(to_vissl(model))
    assert names[0] == "_feature_blocks.conv1.stem.0.weight"
    assert "_feature_blocks.res3.block2-0.proj.weight" in names
    parts = {"trunk": to_vissl(model), "heads": {}}
    file = {"classy_state_dict": {"base_model": {"model": parts}}}
    theirs = timm.create_model("regnety_004", num_classes=0).eval()
    theirs.load_state_dict(timm.models.regnet._filter_fn(file))
    x = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(model(x)[0], theirs(x), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("name", "width"), [("regnet_y_400mf", 440), ("regnet_x_1.6gf", 912), ("regnet_z_500mf", 256)]
)
def test_published_networks(name: str, width: int) -> None:
    model = trunk(name=name, bn_momentum=0.3, bn_epsilon=1e-3)
    assert model.feature_names == ("conv1", "res2", "res3", "res4", "res5", "avgpool", "flatten")
    norms = [each for each in model.modules() if isinstance(each, torch.nn.BatchNorm2d)]
    assert {(norm.momentum, norm.eps) for norm in norms} == {(0.3, 1e-3)}
    assert list(model.trunk_output[-1].children())[-1].f.c.out_channels == width


def test_features_of_any_size() -> None:
    model = trunk(name="anynet", **STAGES)
    shapes = {name: tuple(f.shape) for name, f in checks.features(model, (40, 24)).items()}
    assert shapes == {
        "conv1": (2, 32, 20, 12),
        "res2": (2, 16, 10, 6),
        "res3": (2, 32, 5, 3),
        "avgpool": (2, 32, 1, 1),
        "flatten": (2, 32),
    }


@pytest.mark.parametrize("parts", [1, 3, 50])
def test_activation_checkpointing_changes_nothing(parts: int) -> None:
    checks.checkpointing_changes_nothing(trunk(), parts)


def test_activation_checkpointing_recomputes() -> None:
    model = trunk()
    assert not checks.recomputes(model, model.stem.stem[0])
    model = trunk()
    model.checkpoint_activations(2)
    assert checks.recomputes(model, model.stem.stem[0])


def test_a_network_must_be_asked_for() -> None:
    with pytest.raises(ConfigError, match=r"REGNET: set `name` to a published network"):
        RegNet(RegNetOptions())
