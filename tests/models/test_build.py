from __future__ import annotations

import copy
import logging
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from torch import Tensor

from sslengine.config import sections
from sslengine.config.sections import read, section
from sslengine.errors import CheckpointError, ConfigError, UnknownNameError
from sslengine.launch.cli import main
from sslengine.models.build import build_model, build_trunk, known_heads, trunk_with_heads
from sslengine.models.model import Model
from sslengine.models.options import (
    FeatureEvalOptions,
    HeadOptions,
    ModelOptions,
    TrunkOptions,
)
from sslengine.models.trunks.base import Trunk
from sslengine.models.trunks.resnet import ResNet
from sslengine.models.weights.load import init_from_file
from sslengine.models.weights.state import vissl_state
from sslengine.registry import MODELS, TRUNKS, register_model, register_trunk
from tests.config.recipes import resolved
from tests.models.trunks import checks
from tests.registries import as_before

TINY = {"DEPTH": 18, "BLOCKS": [1, 1, 1, 1], "WIDTH_MULTIPLIER": 0.125, "STEM": "small"}
X = torch.randn(4, 3, 16, 16)


def options(tree: dict[str, Any] | None = None, **trunk: Any) -> ModelOptions:
    """As a YAML file would say it."""
    return checks.options({"TRUNK": {"RESNETS": TINY, **trunk}}, tree or {})


def build(tree: dict[str, Any] | None = None, **trunk: Any) -> Model:
    torch.manual_seed(0)
    return build_model(options(tree, **trunk))


def test_a_trunk_may_read_several_sections() -> None:
    small = {"IMAGE_SIZE": 16, "NUM_LAYERS": 2, "HIDDEN_DIM": 24, "NUM_HEADS": 2, "MLP_DIM": 8}
    sections = {"VISION_TRANSFORMERS": small, "CONVIT": {"N_GPSA_LAYERS": 1, "LOCALITY_DIM": 2}}
    trunk = build(NAME="convit", **sections).trunk
    assert trunk.pos_embed.shape[-1] == 24
    assert trunk.blocks[0].attn.pos_proj.in_features == 6


@pytest.mark.parametrize("name", ["regnet", "regnet_v2", "regnet_fsdp", "xcit_fsdp"])
def test_names_for_splitting_over_ranks_build_the_same_trunk(name: str) -> None:
    rule = {"depth": 3, "w_0": 16, "w_a": 12.0, "w_m": 2.0, "group_width": 8}
    small = {"IMAGE_SIZE": 16, "NUM_LAYERS": 2, "HIDDEN_DIM": 24, "NUM_HEADS": 2}
    trunk = build(NAME=name, REGNET=rule, XCIT=small).trunk
    assert type(trunk) is type(build(NAME=name.split("_")[0], REGNET=rule, XCIT=small).trunk)


LINEAR = {
    "FEATURE_EVAL_SETTINGS": {"EVAL_MODE_ON": True, "FREEZE_TRUNK_ONLY": True,
                              "SHOULD_FLATTEN_FEATS": False,
                              "LINEAR_EVAL_FEAT_POOL_OPS_MAP": [["res5",
                                                                 ["AvgPool2d", [[2, 2], 1, 0]]],
                                                                ["conv1",
                                                                 ["AdaptiveAvgPool2d", [1]]]]},
    "HEAD": {"PARAMS": [["eval_mlp", {"in_channels": 64, "dims": [64, 5]}],
                        ["eval_mlp", {"in_channels": 8, "dims": [8, 5]}]]},
}  # fmt: skip


def test_linear_evaluation() -> None:
    model = build(LINEAR).train()
    buffers = copy.deepcopy(dict(model.trunk.named_buffers()))
    outputs = model(X)
    assert [output.shape for output in outputs] == [(4, 5), (4, 5)]
    sum(output.sum() for output in outputs).backward()
    assert all(parameter.grad is None for parameter in model.trunk.parameters())
    assert all(parameter.grad is not None for parameter in model.heads.parameters())
    for name, buffer in model.trunk.named_buffers():
        assert torch.equal(buffer, buffers[name])
    with torch.no_grad():
        res5, conv1 = model.trunk(X, ["res5", "conv1"])
        expected = model.heads[1](conv1.mean((2, 3)))
        torch.testing.assert_close(outputs[0], model.heads[0](res5.mean((2, 3))))
        torch.testing.assert_close(outputs[1], expected)


def test_parameters_that_are_not_trained() -> None:
    heads = {"PARAMS": [["mlp", {"dims": [64, 2]}]]}
    model = build({"HEAD": heads, "NON_TRAINABLE_PARAMS": ["module.heads.0.clf.0.bias"]})
    frozen = [name for name, each in model.named_parameters() if not each.requires_grad]
    assert frozen == ["heads.0.clf.0.bias"]
    with pytest.raises(
        ConfigError, match=r"PARAMS\.0: no parameter 'heads\.0\.clf\.0\.bais'\. Did"
    ):
        build({"HEAD": heads, "NON_TRAINABLE_PARAMS": ["heads.0.clf.0.bais"]})


def test_activation_checkpointing_reaches_the_trunk() -> None:
    trunk = build({"ACTIVATION_CHECKPOINTING": {"USE_ACTIVATION_CHECKPOINTING": True}}).trunk
    assert checks.recomputes(trunk, trunk.layer1[0].conv1)
    plain = build().trunk
    assert not checks.recomputes(plain, plain.layer1[0].conv1)


def test_freezing_all() -> None:
    frozen = {"FEATURE_EVAL_SETTINGS": {"EVAL_MODE_ON": True, "FREEZE_TRUNK_AND_HEAD": True}}
    model = build({**frozen, "HEAD": {"PARAMS": [["mlp", {"dims": [64, 2]}]]}}).train()
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert not any(module.training for module in (model.trunk, model.heads[0]))


def test_batch_norms_are_synchronised(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr("sslengine.models.build.synchronise", lambda *given: asked.extend(given))
    made = options()
    model = build_model(made, ranks_per_node=4)
    assert asked == [model, made.SYNC_BN_CONFIG, 4]


def test_names_that_do_not_fit_are_told() -> None:
    with pytest.raises(UnknownNameError, match=r"TRUNK\.NAME: there is no trunk named 'resent'"):
        build(NAME="resent")
    features = {"LINEAR_EVAL_FEAT_POOL_OPS_MAP": [["res6", ["Identity", []]]]}
    with pytest.raises(ConfigError, match=r"OPS_MAP: ResNet has no feature 'res6'. Did you mean"):
        build({"FEATURE_EVAL_SETTINGS": {"EVAL_MODE_ON": True, **features}})


@dataclass
class MineOptions:
    SCALE: float = 2.0


class Mine(Trunk):
    feature_names = ("flatten",)

    def __init__(self, options: MineOptions) -> None:
        super().__init__()
        self.scale = options.SCALE

    def features(self, x: Tensor, wanted: Collection[str]) -> dict[str, Tensor]:
        return {"flatten": self.scale * x.flatten(1)}


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sections, "_SECTIONS", {"": ModelRoot, "MODEL": ModelOptions})
    with as_before(TRUNKS):
        register_trunk("mine", options=MineOptions)(Mine)
        yield


@dataclass
class ModelRoot:
    pass


@pytest.mark.usefixtures("plugin")
def test_a_trunk_of_ones_own_brings_its_section() -> None:
    section("MODEL.TRUNK.MINE")(MineOptions)
    config = sections.schema()
    config.MODEL.TRUNK.NAME = "mine"
    config.MODEL.TRUNK.MINE.SCALE = 5.0
    torch.testing.assert_close(build_model(read(config, ModelOptions))(X)[0], 5 * X.flatten(1))


class WithoutOptions(Mine):
    def __init__(self) -> None:
        super().__init__(MineOptions(3.0))


def test_a_trunk_by_its_path() -> None:
    model = build(NAME="tests.models.test_build:WithoutOptions")
    torch.testing.assert_close(model(X)[0], 3 * X.flatten(1))


@dataclass
class ScaledOptions:
    SCALE: float = 1.0


class Scaled(torch.nn.Module):
    """A model of one's own around the trunk of the config."""

    def __init__(self, options: ScaledOptions, model: ModelOptions) -> None:
        super().__init__()
        self.trunk, self.scale = build_trunk(model), options.SCALE


class Plain(torch.nn.Module):
    def __init__(self, width: int, model: ModelOptions | None = None) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(width, 1)
        self.given = model


@pytest.fixture
def models() -> Iterator[None]:
    with as_before(MODELS):
        register_model("scaled", options=ScaledOptions)(Scaled)
        yield


@pytest.mark.usefixtures("models")
def test_a_registered_model_gets_its_options_and_the_section() -> None:
    config = resolved(MODEL__BASE_MODEL_NAME="scaled", MODEL__scaled={"SCALE": 3.0}).config
    model = build_model(read(config, ModelOptions))
    assert isinstance(model, Scaled)
    assert isinstance(model.trunk, ResNet)
    assert model.scale == 3.0
    with pytest.raises(ConfigError, match=r"config.MODEL.scaled.SCLAE: unknown key. Did you mean"):
        resolved(MODEL__BASE_MODEL_NAME="scaled", MODEL__scaled={"SCLAE": 3.0})


def test_a_model_by_its_path_gets_its_own_arguments() -> None:
    name = "tests.models.test_build:Plain"
    config = resolved(MODEL__BASE_MODEL_NAME=name, MODEL__Plain={"width": 4}).config
    model = build_model(read(config, ModelOptions))
    assert isinstance(model, Plain)
    assert model.linear.in_features == 4
    assert isinstance(model.given, ModelOptions)
    with pytest.raises(ConfigError, match="width"):
        resolved(MODEL__BASE_MODEL_NAME=name)


def test_what_needs_a_trunk_with_heads_says_so() -> None:
    frozen = {"EVAL_MODE_ON": True, "FREEZE_TRUNK_ONLY": True}
    path = {"BASE_MODEL_NAME": "torch.nn:Identity"}
    with pytest.raises(ConfigError, match=r"FREEZE_TRUNK_ONLY needs a trunk with heads; Identity"):
        build({**path, "FEATURE_EVAL_SETTINGS": frozen})
    assert isinstance(build(path), torch.nn.Identity)


# ---- Widths, channels and rows: what a model's shapes follow from


SMALL = {"DEPTH": 18, "WIDTH_MULTIPLIER": 1 / 8}
MLP = [["mlp", {"dims": ["auto", 8]}]]


def options_widths(
    params: list[Any], features: list[Any] | None = None, **trunk: Any
) -> ModelOptions:
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
    asked = checks.options({"TRUNK": {"NAME": name, "REGNET": {"name": "regnet_y_400mf"},
                                      "RESNETS": SMALL}, "HEAD": {"PARAMS": MLP}})  # fmt: skip
    assert known_heads(asked) == [["mlp", {"dims": [OF_TRUNKS[name], 8]}]]
    assert asked.HEAD.PARAMS == MLP  # the options_widths are not written to


def test_the_trunk_is_drawn_as_without_auto() -> None:
    weights = []
    for first in ("auto", 64):
        torch.manual_seed(0)
        weights.append(build_model(options_widths([["mlp", {"dims": [first, 8]}]])).state_dict())
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
    asked = options_widths(params, features)
    assert known_heads(asked) == expected
    build_model(asked)


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
        known_heads(options_widths(params, features))


def test_heads_of_pretraining_that_the_judged_features_do_not_fit() -> None:
    """Where features alone are computed nothing gets them."""
    judged = options_widths([["pixel_head", {"in_dim": 3, "stride": 32}]])
    settings = judged.FEATURE_EVAL_SETTINGS
    settings.EVAL_MODE_ON = settings.FREEZE_TRUNK_ONLY = True
    settings.EXTRACT_TRUNK_FEATURES_ONLY = True
    model = trunk_with_heads(build_model(judged).eval(), "the test")
    assert len(model.heads) == 0
    assert model(torch.zeros(1, 3, 32, 32))[0].shape == (1, 64)


def test_auto_is_the_first_width_or_the_last_and_no_other() -> None:
    (problem,) = options_widths([["mlp", {"dims": [64, "auto", 8]}]]).check()
    assert "HEAD.PARAMS.0.1.dims: auto is the width of the feature" in problem
    with pytest.raises(ConfigError, match="the number of classes is `auto`; the command fills it"):
        known_heads(options_widths([["mlp", {"dims": [64, "auto"]}]]))


def test_show_says_the_width(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    run = ["config=quickstart/simclr", "config.MODEL.HEAD.PARAMS=[[mlp,{dims:[auto,8]}]]"]
    assert main([*run, "--show"]) == 0
    shown = capsys.readouterr().out
    _, _, after = shown.partition("# derived: auto: the widths of the features\n")
    assert after.split()[:7] == ["-", "-", "mlp", "-", "dims:", "-", "128"]


def test_the_widths_of_the_library_trunks() -> None:
    for name, model, width in (("timm", "test_vit", 64), ("torchvision", "regnet_y_400mf", 440)):
        asked = options_widths(MLP, NAME=name)
        chosen = asked.TRUNK.library()
        assert chosen is not None
        chosen.model = model
        assert known_heads(asked) == [["mlp", {"dims": [width, 8]}]]
        assert build_trunk(asked)(torch.zeros(1, 3, 160, 160))[0].shape == (1, width)


# ---- Weights of trunks for RGB images in trunks for others.


CONVNEXT = {"DEPTH": [1, 1, 1, 1], "DIMS": [8, 8, 8, 8]}


def options_channels(channels: int, trunk: dict[str, Any], **weights: Any) -> ModelOptions:
    tree = {"TRUNK": trunk, "INPUT_CHANNELS": channels, "WEIGHTS_INIT": weights}
    return checks.options(tree)


@pytest.mark.parametrize("channels", [1, 5])
def test_adapted_as_timm_does(channels: int, tmp_path: Path) -> None:
    """The oracle is timm's own way from its RGB weights to another `in_chans`."""
    theirs = timm.create_model("convnext_atto", pretrained=False)
    torch.save(theirs.state_dict(), tmp_path / "rgb.pth")
    overlay = {"file": str(tmp_path / "rgb.pth")}
    expected = timm.create_model(
        "convnext_atto", pretrained=True, in_chans=channels, pretrained_cfg_overlay=overlay
    )
    whole = {"DEPTH": [2, 2, 6, 2], "DIMS": [40, 80, 160, 320]}
    ours = timm.models.convnext.ConvNeXt(depths=whole["DEPTH"], dims=whole["DIMS"])
    ours.stem.load_state_dict(theirs.stem.state_dict())
    state = {f"trunk.{k}": v for k, v in ours.state_dict().items() if "head.fc" not in k}
    torch.save(state, tmp_path / "trunk.pth")
    made = options_channels(
        channels, {"NAME": "convnext", "CONVNEXT": whole}, PARAMS_FILE=str(tmp_path / "trunk.pth"),
        STATE_DICT_KEY_NAME="", ADAPT_INPUT_CHANNELS=True,
    )  # fmt: skip
    model = build_model(made)
    init_from_file(model, made)
    stem = model.get_parameter("trunk.stem.0.weight")
    assert stem.shape[1] == channels
    assert torch.equal(stem, expected.stem[0].weight)


def test_not_without_being_asked(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trunk = {"NAME": "convnext", "CONVNEXT": CONVNEXT}
    rgb: Any = build_model(options_channels(3, trunk))
    torch.save(vissl_state(rgb), tmp_path / "rgb.torch")
    weights = {"PARAMS_FILE": str(tmp_path / "rgb.torch"),
               "STATE_DICT_KEY_NAME": ["classy_state_dict", "base_model", "model"]}  # fmt: skip
    four = options_channels(4, trunk, **weights)
    with pytest.raises(CheckpointError, match=r"trunk.stem.0.weight takes 3 channels in .*, 4 in the model"
                       r"[\s\S]*ADAPT_INPUT_CHANNELS=true"):  # fmt: skip
        init_from_file(build_model(four), four)
    asked = options_channels(4, trunk, **weights, ADAPT_INPUT_CHANNELS=True)
    with caplog.at_level(logging.WARNING):
        init_from_file(build_model(asked), asked)
    assert "3 channels in" in caplog.text
    same = options_channels(3, trunk, **weights, ADAPT_INPUT_CHANNELS=True)
    model = build_model(same)
    init_from_file(model, same)
    assert torch.equal(model.get_parameter("trunk.stem.0.weight"), rgb.trunk.stem[0].weight)


# ---- A batch norm that would train on one row: found in the first step.


TINY_WIDTHS = [
    "config.DATA.NUM_DATALOADER_WORKERS=0", "config.OPTIMIZER.num_epochs=1",
    "config.MODEL.TRUNK.VISION_TRANSFORMERS.NUM_LAYERS=1", "config.LOG_FREQUENCY=1000",
]  # fmt: skip
KEYS = ("BATCHSIZE_PER_REPLICA", "DROP_LAST=true", "SYNC_BN_CONFIG.CONVERT_BN_TO_SYNC_BN=true")


def run(recipe: str, folder: Path, images: int, batch: int) -> int:
    of = [f"DATA_LIMIT={images}", f"BATCHSIZE_PER_REPLICA={batch}", "DROP_LAST=false"]
    data = [f"config.DATA.TRAIN.{each}" for each in of]
    return main(
        [f"config=quickstart/{recipe}", *TINY_WIDTHS, *data, f"config.CHECKPOINT.DIR={folder}"]
    )


@pytest.mark.parametrize(
    ("images", "batch", "why"),
    [
        (4, 1, "BATCHSIZE_PER_REPLICA: A batch has one image on a rank"),
        (9, 4, "The last batch of an epoch has one image on a rank"),
    ],
)
def test_a_batch_of_one_image_on_a_rank_is_refused_early(
    images: int, batch: int, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("msn", tmp_path / "run", images, batch) == 2
    said = capsys.readouterr()
    assert why in said.err
    assert all(key in said.err for key in KEYS)
    assert "step 1/" not in said.out
