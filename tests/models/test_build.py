from __future__ import annotations

import copy
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from torch import Tensor

from sslengine.config import sections
from sslengine.config.sections import read, section
from sslengine.errors import ConfigError, UnknownNameError
from sslengine.models.build import build_model, build_trunk
from sslengine.models.model import Model
from sslengine.models.options import ModelOptions
from sslengine.models.trunks.base import Trunk
from sslengine.models.trunks.resnet import ResNet
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


def test_trunk_and_heads() -> None:
    model = build({"HEAD": {"PARAMS": [["mlp", {"dims": [64, 8]}], ["mlp", {"dims": [8, 2]}]]}})
    (output,) = model(X)
    assert output.shape == (4, 2)
    flat = model.trunk(X)[0]
    torch.testing.assert_close(output, model.heads[1](model.heads[0](flat)))


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


def test_features_of_the_trunk_alone() -> None:
    extract = {"FEATURE_EVAL_SETTINGS": {"EXTRACT_TRUNK_FEATURES_ONLY": True}}
    settings = OmegaConf.to_container(OmegaConf.merge(LINEAR, extract))
    res5, conv1 = build(settings)(X)  # type: ignore[arg-type]
    assert (res5.shape, conv1.shape) == ((4, 64, 1, 1), (4, 8, 1, 1))


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
