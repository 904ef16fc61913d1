"""`auto` in heads: the widths of the features, of every trunk that ships."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from sslengine.errors import ConfigError
from sslengine.launch.cli import main
from sslengine.models.build import build_model, build_trunk, known_heads, trunk_with_heads
from sslengine.models.options import (
    FeatureEvalOptions,
    HeadOptions,
    ModelOptions,
    TrunkOptions,
)

MLP = [["mlp", {"dims": ["auto", 8]}]]


def options(params: list[Any], features: list[Any] | None = None, **trunk: Any) -> ModelOptions:
    """Of a small ResNet, whose widths are 8, 8, 16, 32 and 64, or of another trunk."""
    made = ModelOptions(HEAD=HeadOptions(PARAMS=params))
    made.TRUNK = TrunkOptions(**trunk)
    made.TRUNK.RESNETS.DEPTH, made.TRUNK.RESNETS.WIDTH_MULTIPLIER = 18, 1 / 8
    if features:
        made.FEATURE_EVAL_SETTINGS = FeatureEvalOptions(
            EVAL_MODE_ON=True, LINEAR_EVAL_FEAT_POOL_OPS_MAP=features, SHOULD_FLATTEN_FEATS=False
        )
    return made


# What the networks' authors say.
OF_TRUNKS = {
    "vision_transformer": 768, "regnet": 440, "efficientnet": 1280, "xcit": 384, "convit": 768,
    "swin_transformer": 768, "convnext": 768, "beit": 768, "alexnet": 9216, "mobilenetv3_tv": 960,
    "mobilenetv3_timm": 960, "resnet": 64,
}  # fmt: skip


@pytest.mark.parametrize("name", OF_TRUNKS)
def test_of_every_trunk(name: str) -> None:
    asked = options(MLP, NAME=name)
    asked.TRUNK.REGNET.name = "regnet_y_400mf"
    assert known_heads(asked) == [["mlp", {"dims": [OF_TRUNKS[name], 8]}]]
    assert asked.HEAD.PARAMS == MLP  # the options are not written to


def test_the_trunk_is_drawn_as_without_auto() -> None:
    weights = []
    for first in ("auto", 64):
        torch.manual_seed(0)
        weights.append(build_model(options([["mlp", {"dims": [first, 8]}]])).state_dict())
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


@pytest.mark.parametrize(
    ("params", "features", "expected"),
    [
        # A chain: the second gets what the first gives.
        ([["mlp", {"dims": ["auto", 12]}], ["mlp", {"dims": ["auto", 3]}]], None,
         [["mlp", {"dims": [64, 12]}], ["mlp", {"dims": [12, 3]}]]),
        ([[["mlp", {"dims": ["auto", 12]}], ["mlp", {"dims": ["auto", 3]}]]], None,
         [[["mlp", {"dims": [64, 12]}], ["mlp", {"dims": [12, 3]}]]]),
        ([["dino_head", {"in_dim": "auto", "num_clusters": [6]}]], None,
         [["dino_head", {"in_dim": 64, "num_clusters": [6]}]]),
        # Nine rows are one image's.
        ([["mlp", {"dims": ["auto", 4]}], ["siamese_concat_view", {"num_towers": 9}],
          ["mlp", {"dims": ["auto", 3]}]], None,
         [["mlp", {"dims": [64, 4]}], ["siamese_concat_view", {"num_towers": 9}],
          ["mlp", {"dims": [36, 3]}]]),
        # A head for each feature: channels, and values of the pooled feature.
        ([["eval_mlp", {"in_channels": "auto", "dims": ["auto", 3]}]] * 2,
         [["res3", ["AdaptiveAvgPool2d", [[2, 2]]]], ["res5", ["AdaptiveAvgPool2d", [[1, 1]]]]],
         [["eval_mlp", {"in_channels": 16, "dims": [64, 3]}],
          ["eval_mlp", {"in_channels": 64, "dims": [64, 3]}]]),
        # Two heads on one feature.
        ([[["mlp", {"dims": ["auto", 3]}]], [["mlp", {"dims": ["auto", 5]}]]], None,
         [[["mlp", {"dims": [64, 3]}]], [["mlp", {"dims": [64, 5]}]]]),
    ],
)  # fmt: skip
def test_ways_of_features(params: list[Any], features: Any, expected: list[Any]) -> None:
    asked = options(params, features)
    assert known_heads(asked) == expected
    build_model(asked)


def test_images_of_many_channels() -> None:
    asked = options(MLP)
    asked.INPUT_CHANNELS = 13
    assert known_heads(asked) == [["mlp", {"dims": [64, 8]}]]


@pytest.mark.parametrize(
    ("params", "features", "text"),
    [
        ([["eval_mlp", {"in_channels": 64, "dims": ["auto", 3]}]], [["res5", ["Identity", []]]],
         "depends on the size of the images.*3136.*12544.*pool the feature"),
        (MLP, [["res9", ["Identity", []]]], "no feature 'res9'"),
    ],
)  # fmt: skip
def test_what_cannot_be_known(params: list[Any], features: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        known_heads(options(params, features))


def test_heads_of_pretraining_that_the_judged_features_do_not_fit() -> None:
    """SimMIM's head takes the patches; where features alone are computed nothing gets them."""
    judged = options([["pixel_head", {"in_dim": "auto", "stride": 32}]])
    with pytest.raises(ConfigError, match="a pixel_head with in_dim 64 got features of shape"):
        known_heads(judged)
    settings = judged.FEATURE_EVAL_SETTINGS
    settings.EVAL_MODE_ON = settings.FREEZE_TRUNK_ONLY = True
    settings.EXTRACT_TRUNK_FEATURES_ONLY = True
    model = trunk_with_heads(build_model(judged).eval(), "the test")
    assert len(model.heads) == 0
    assert model(torch.zeros(1, 3, 32, 32))[0].shape == (1, 64)


def test_auto_is_the_first_width_or_the_last_and_no_other() -> None:
    (problem,) = options([["mlp", {"dims": [64, "auto", 8]}]]).check()
    assert "HEAD.PARAMS.0.1.dims: auto is the width of the feature" in problem
    with pytest.raises(ConfigError, match="the number of classes is `auto`; the command fills it"):
        known_heads(options([["mlp", {"dims": [64, "auto"]}]]))


def test_show_says_the_width(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    run = ["config=quickstart/simclr", "config.MODEL.HEAD.PARAMS=[[mlp,{dims:[auto,8]}]]"]
    assert main([*run, "--show"]) == 0
    shown = capsys.readouterr().out
    _, _, after = shown.partition("# derived: auto: the widths of the features\n")
    assert after.split()[:7] == ["-", "-", "mlp", "-", "dims:", "-", "128"]


def test_the_widths_of_the_library_trunks() -> None:
    for name, model, width in (("timm", "test_vit", 64), ("torchvision", "regnet_y_400mf", 440)):
        asked = options(MLP, NAME=name)
        chosen = asked.TRUNK.library()
        assert chosen is not None
        chosen.model = model
        assert known_heads(asked) == [["mlp", {"dims": [width, 8]}]]
        assert build_trunk(asked)(torch.zeros(1, 3, 160, 160))[0].shape == (1, width)
