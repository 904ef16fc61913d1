"""Every trunk takes images of any number of channels."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from torch import nn

from sslengine.errors import ConfigError
from sslengine.models.build import build_trunk
from sslengine.models.options import ModelOptions
from sslengine.models.trunks.base import Trunk
from sslengine.models.trunks.inputs import by_fan_out, with_inputs
from sslengine.registry import TRUNKS

TINY = {"DEPTH": 18, "BLOCKS": [1, 1, 1, 1], "WIDTH_MULTIPLIER": 0.125}
VIT = {"IMAGE_SIZE": 32, "NUM_LAYERS": 2, "HIDDEN_DIM": 24, "NUM_HEADS": 2, "MLP_DIM": 8}
RULE = {"depth": 3, "w_0": 16, "w_a": 12.0, "w_m": 2.0, "group_width": 8}
SMALL = {"IMAGE_SIZE": 32, "NUM_LAYERS": 2, "HIDDEN_DIM": 24, "NUM_HEADS": 2}
SWIN = {"IMAGE_SIZE": 32, "EMBED_DIM": 24, "DEPTHS": [1, 1], "NUM_HEADS": [2, 2], "WINDOW_SIZE": 4}
TRUNKS_BY_NAME: list[tuple[str, dict[str, Any]]] = [
    ("resnet", {"RESNETS": TINY}),
    ("resnet", {"RESNETS": {**TINY, "STEM": "small", "NORM": "LayerNorm"}}),
    ("vision_transformer", {"VISION_TRANSFORMERS": VIT}),
    ("convit", {"VISION_TRANSFORMERS": VIT, "CONVIT": {"N_GPSA_LAYERS": 1}}),
    ("beit", {"BEIT": SMALL}),
    ("xcit", {"XCIT": SMALL}),
    ("swin_transformer", {"SWIN_TRANSFORMER": SWIN}),
    ("convnext", {"CONVNEXT": {"DEPTH": [1, 1, 1, 1], "DIMS": [8, 8, 8, 8]}}),
    *(
        ("regnet", {"REGNET": {**RULE, "stem_type": stem}})
        for stem in ("simple_stem_in", "res_stem_cifar", "res_stem_in")
    ),
    ("efficientnet", {}),
    ("mobilenetv3_tv", {}),
    ("mobilenetv3_timm", {}),
    ("alexnet", {}),
    ("resnet_sk", {"RESNETS_SK": {"DEPTH": 50, "WIDTH_MULTIPLIER": 0.25}}),
    ("timm", {"TIMM": {"model": "test_vit", "arguments": {"img_size": 32}}}),
    ("torchvision", {"TORCHVISION": {"model": "shufflenet_v2_x0_5"}}),
]


def trunk(channels: int | str, name: str, **sections: Any) -> Trunk:
    tree = {"TRUNK": {"NAME": name, **sections}, "INPUT_CHANNELS": channels}
    made: Any = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(ModelOptions), tree))
    return build_trunk(made)


@pytest.mark.parametrize("channels", [1, 5])
@pytest.mark.parametrize(("name", "sections"), TRUNKS_BY_NAME)
def test_every_trunk_computes_with_all_channels(
    name: str, sections: dict[str, Any], channels: int
) -> None:
    model = trunk(channels, name, **sections)
    side = 64 if name == "alexnet" else 32
    x = torch.rand(2, channels, side, side, requires_grad=True)
    (features,) = model.train()(x)
    features.square().sum().backward()
    assert x.grad is not None
    assert (x.grad.abs().sum((0, 2, 3)) > 0).all()
    with pytest.raises(ConfigError, match=rf"INPUT_CHANNELS: the trunk takes images of {channels}"):
        model(torch.rand(2, 3, side, side))


@pytest.mark.parametrize(("name", "sections"), TRUNKS_BY_NAME)
def test_three_channels_are_as_before(name: str, sections: dict[str, Any]) -> None:
    torch.manual_seed(0)
    asked = trunk(3, name, **sections).state_dict()
    torch.manual_seed(0)
    unasked = trunk("auto", name, **sections).state_dict()
    assert all(torch.equal(asked[key], value) for key, value in unasked.items())
    (first,) = {tuple(value.shape[1:2]) for value in unasked.values() if value.ndim == 4} & {(3,)}
    assert first == (3,)


def test_every_trunk_that_ships_is_here() -> None:
    shown = {TRUNKS.get(name) for name, _ in TRUNKS_BY_NAME}
    ours = {
        each for each in map(TRUNKS.get, TRUNKS.names()) if each.__module__.startswith("sslengine.")
    }
    assert shown == ours


class Mine(Trunk):
    feature_names = ("flat",)

    def features(self, x: torch.Tensor, wanted: Any) -> dict[str, torch.Tensor]:
        return {"flat": x.flatten(1)}


def test_a_trunk_of_ones_own_that_takes_three() -> None:
    name = f"{__name__}:Mine"
    assert trunk("auto", name)(torch.rand(1, 3, 2, 2))[0].shape == (1, 12)
    with pytest.raises(ConfigError, match=r"have 4 channels.*Mine' takes 3.*`in_chans`"):
        trunk(4, name)


def test_the_new_layer_is_like_the_old_one() -> None:
    old = nn.Conv2d(3, 256, 7, stride=2, padding=3, bias=False)
    assert with_inputs(old, 3) is old
    new = with_inputs(old, 8, by_fan_out)
    assert (new.stride, new.padding, new.bias) == (old.stride, old.padding, None)
    expected = math.sqrt(2 / (256 * 49))
    assert abs(new.weight.detach().std().item() / expected - 1) < 0.02
    assert with_inputs(nn.Conv2d(3, 4, 3), 2).bias is not None
