from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest
import timm
import torch
from torch import nn

from sslengine.config.sections import section_problems
from sslengine.errors import ConfigError
from sslengine.launch.preflight import expect_fitting_shapes
from sslengine.methods.base import Method, Multiplier
from sslengine.models.build import build_trunk
from sslengine.models.options import ModelOptions, TrunkOptions, VisionTransformerOptions
from sslengine.optim.build import build_optimizer
from sslengine.optim.learner import learner_of
from sslengine.optim.options import OptimizerOptions
from sslengine.optim.param_groups import Group, build_param_groups
from sslengine.optim.schedules import schedule
from tests.config.recipes import resolved


class RmsNorm(nn.Module):
    """A norm layer that torch does not know."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))


class Trunk(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cls_token = nn.Parameter(torch.zeros(1, 4))
        self.conv = nn.Conv2d(3, 4, 3)
        self.bn = nn.BatchNorm2d(4)
        self.gn = nn.GroupNorm(2, 4)
        self.ln = nn.LayerNorm(4)
        self.rms = RmsNorm()
        self.attn = nn.MultiheadAttention(4, 1)


def model(trunk: nn.Module | None = None, heads: int = 1) -> nn.Module:
    head = nn.Sequential(OrderedDict(clf=nn.Linear(4, 2), bn=nn.BatchNorm1d(2)))
    layers = [head] + [nn.Linear(4, 2) for _ in range(heads - 1)]
    return nn.ModuleDict({"trunk": trunk or Trunk(), "heads": nn.ModuleList(layers)})


def placed(module: nn.Module, groups: list[Group]) -> dict[str, Group]:
    """The group of each parameter."""
    names = {id(p): name for name, p in module.named_parameters()}
    return {names[id(p)]: group for group in groups for p in group["params"]}


def without_decay(module: nn.Module, **settings: Any) -> set[str]:
    groups = build_param_groups(module, OptimizerOptions(**settings))
    return {
        name for name, group in placed(module, groups).items() if group.get("weight_decay") == 0.0
    }


NORMS = {"trunk.bn", "trunk.gn", "trunk.ln", "heads.0.bn"}
NORM_WEIGHTS = {f"{name}.weight" for name in NORMS} | {"trunk.rms.weight"}
NORM_BIASES = {f"{name}.bias" for name in NORMS}
OTHER_BIASES = {
    "trunk.conv.bias",
    "trunk.attn.in_proj_bias",
    "trunk.attn.out_proj.bias",
    "heads.0.clf.bias",
}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, NORM_WEIGHTS | NORM_BIASES),
        ({"regularize_bias": False}, NORM_WEIGHTS | NORM_BIASES | OTHER_BIASES),
        ({"regularize_bn": True}, set()),
        ({"regularize_bn": True, "regularize_bias": False}, NORM_BIASES | OTHER_BIASES),
        (
            {"regularize_bn": True, "non_regularized_parameters": ["cls_token", "clf.weight"]},
            {"trunk.cls_token", "heads.0.clf.weight"},
        ),
        (
            {"param_group_constructor": "dino", "non_regularized_parameters": ["cls_token"]},
            NORM_WEIGHTS | NORM_BIASES | OTHER_BIASES | {"trunk.cls_token"},
        ),
    ],
)
def test_weight_decay(settings: dict[str, Any], expected: set[str]) -> None:
    assert without_decay(model(), **settings) == expected


@pytest.mark.parametrize("constructor", ["default", "dino"])
def test_trunk_and_heads_are_apart(constructor: str) -> None:
    module = model()
    groups = build_param_groups(module, OptimizerOptions(param_group_constructor=constructor))
    assert {group["name"] for group in groups} == {
        "trunk", "trunk without decay", "heads", "heads without decay",
    }  # fmt: skip
    for name, group in placed(module, groups).items():
        assert group["is_head"] == name.startswith("heads."), name
        assert group.get("weight_decay") in (None, 0.0)


def test_every_trainable_parameter_once_and_no_other() -> None:
    module = model(heads=2)
    module["heads"][1].weight = module["heads"][0].clf.weight  # type: ignore[index]
    module["trunk"].conv.requires_grad_(False)  # type: ignore[index]
    groups = build_param_groups(module, OptimizerOptions())
    found = [p for group in groups for p in group["params"]]
    expected = [p for p in module.parameters() if p.requires_grad]
    assert len(found) == len(expected)
    assert {id(p) for p in found} == {id(p) for p in expected}


def test_nothing_to_train() -> None:
    with pytest.raises(ConfigError, match="nothing to train"):
        build_param_groups(model().requires_grad_(False), OptimizerOptions())


def scales(module: nn.Module, decay: float) -> dict[str, float]:
    options = OptimizerOptions(param_group_constructor="lr_decay")
    options.layer_wise_lr_decay.decay = decay
    groups = build_param_groups(module, options)
    return {name: group["lr_scale"] for name, group in placed(module, groups).items()}


def test_lr_decay_of_a_vit() -> None:
    module = model(timm.create_model("vit_tiny_patch16_224", depth=3, num_classes=0))
    by_name = scales(module, 0.5)
    assert by_name["trunk.cls_token"] == by_name["trunk.patch_embed.proj.weight"] == 0.5**4
    assert by_name["trunk.blocks.0.attn.qkv.weight"] == 0.5**3
    assert by_name["trunk.blocks.2.mlp.fc1.weight"] == by_name["trunk.norm.weight"] == 0.5
    assert by_name["heads.0.clf.weight"] == 1.0
    # DINO's rule, whatever regularize_bias says
    exempt = without_decay(module, param_group_constructor="lr_decay", regularize_bias=True)
    assert {"trunk.blocks.0.attn.qkv.bias", "trunk.norm.weight"} <= exempt
    assert "trunk.pos_embed" not in exempt


def linear_heads(entries: list[dict[str, Any]], heads: int = 3) -> dict[str, Group]:
    module = model(heads=heads)
    module["trunk"].requires_grad_(False)  # type: ignore[index]
    options = OptimizerOptions(
        param_group_constructor="linear_eval_heads", linear_eval_heads=entries
    )
    return placed(module, build_param_groups(module, options))


def test_linear_eval_heads() -> None:
    by_name = linear_heads(
        [
            {"lr": 1.0, "regularize_bn": True},
            {"lr": 10.0, "weight_decay": 0.3},
            {"lr": 0.1, "weight_decay": 0.0},
        ]
    )
    assert all(group["is_head"] for group in by_name.values())
    assert {name: group["lr_scale"] for name, group in by_name.items()} == {
        "heads.0.clf.weight": 1.0, "heads.0.clf.bias": 1.0,
        "heads.0.bn.weight": 1.0, "heads.0.bn.bias": 1.0,
        "heads.1.weight": 10.0, "heads.1.bias": 10.0,
        "heads.2.weight": 0.1, "heads.2.bias": 0.1,
    }  # fmt: skip
    assert "weight_decay" not in by_name["heads.0.bn.weight"]
    assert by_name["heads.1.weight"]["weight_decay"] == 0.3
    assert by_name["heads.2.weight"]["weight_decay"] == 0.0
    assert linear_heads([{"lr": 1.0}], 1)["heads.0.bn.weight"]["weight_decay"] == 0.0


def test_linear_eval_heads_need_an_entry_each() -> None:
    with pytest.raises(ConfigError, match=r"linear_eval_heads: 2 entries, and a head number 2"):
        linear_heads([{"lr": 1.0}, {"lr": 2.0}])


# ---- OPTIMIZER.multipliers: factors by names, on top of all others


SMALL: dict[str, Any] = {"IMAGE_SIZE": 16, "PATCH_SIZE": 8, "HIDDEN_DIM": 8, "MLP_DIM": 8,
                         "NUM_LAYERS": 2, "NUM_HEADS": 1}  # fmt: skip
PATCHES = {"match": "trunk.patch_embed.*", "lr": 0.2}
NORM_DECAY = {"match": "*norm*", "weight_decay": 0.1}
METHODS = {"match": "loss.*", "lr": 3.0, "weight_decay": 0.5}


class Predicting(Method):
    def __init__(self) -> None:
        super().__init__()
        self.prototypes = nn.Parameter(torch.zeros(3))

    def multipliers(self) -> dict[str, Multiplier]:
        return {"prototypes": Multiplier(2.0, 0.25)}


def settings(*multipliers: dict[str, Any], **more: Any) -> OptimizerOptions:
    options = OptimizerOptions(name="adamw", weight_decay=0.4, multipliers=[*multipliers], **more)
    options.param_schedulers.lr = schedule("constant", value=0.1)
    return options


def found(*multipliers: dict[str, Any], **more: Any) -> dict[str, tuple[float, float]]:
    """(learning rate, weight decay) of each parameter, in the optimizer."""
    options = VisionTransformerOptions(**SMALL)
    trunk = build_trunk(
        ModelOptions(TRUNK=TrunkOptions("vision_transformer", VISION_TRANSFORMERS=options))
    )
    learner = learner_of(nn.ModuleDict({"trunk": trunk, "heads": nn.ModuleList([nn.Linear(8, 2)])}),
                         Predicting())  # fmt: skip
    made = build_optimizer(learner, settings(*multipliers, **more), torch.device("cpu"), 1.0)
    names = {id(each): name for name, each in learner.named_parameters()}
    return {names[id(each)]: (group["lr"], group["weight_decay"])
            for group in made.param_groups for each in group["params"]}  # fmt: skip


def test_factors_by_name() -> None:
    rates = found(PATCHES, NORM_DECAY, METHODS, regularize_bn=True)
    assert rates["trunk.patch_embed.proj.weight"] == pytest.approx((0.02, 0.4))
    assert rates["trunk.blocks.1.norm1.weight"] == pytest.approx((0.1, 0.04))
    assert rates["trunk.blocks.1.attn.proj.weight"] == pytest.approx((0.1, 0.4))
    assert rates["heads.0.weight"] == pytest.approx((0.1, 0.4))
    assert rates["loss.prototypes"] == pytest.approx((0.6, 0.05))


def test_with_layer_decay_and_without_weight_decay() -> None:
    decay: Any = {"param_group_constructor": "lr_decay", "regularize_bn": False}
    plain, rates = found(**decay), found(PATCHES, NORM_DECAY, **decay)
    assert plain["trunk.patch_embed.proj.weight"] == pytest.approx((0.1 * 0.9**3, 0.4))
    for name, (lr, weight_decay) in plain.items():
        factor = 0.2 if "patch_embed" in name else 1.0
        assert rates[name] == pytest.approx((factor * lr, weight_decay)), name
    assert plain["trunk.blocks.1.norm1.weight"][1] == 0.0


def test_all_that_match_are_multiplied() -> None:
    rates = found(PATCHES, {"match": "*.weight", "lr": 0.5, "weight_decay": 2})
    assert rates["trunk.patch_embed.proj.weight"] == pytest.approx((0.01, 0.8))
    assert rates["trunk.patch_embed.proj.bias"] == pytest.approx((0.02, 0.4))


def test_it_follows_the_schedules() -> None:
    options = settings(PATCHES, {"match": "trunk.patch_embed.*", "weight_decay": 0.5})
    options.param_schedulers.weight_decay = options.param_schedulers.lr
    model = nn.ModuleDict({"trunk": nn.ModuleDict({"patch_embed": nn.Linear(2, 2)})})
    made = build_optimizer(model, options, torch.device("cpu"), 1.0)
    made.schedule(0.5)
    (group,) = made.param_groups
    assert (group["lr"], group["weight_decay"]) == pytest.approx((0.02, 0.05))


def test_names_that_match_nothing() -> None:
    with pytest.raises(ConfigError, match=r"OPTIMIZER.multipliers.1.match: 'trunk.patch_embd.\*'"):
        found(NORM_DECAY, {"match": "trunk.patch_embd.*"})
    vit = {"NAME": "vision_transformer", "VISION_TRANSFORMERS": SMALL}
    run = resolved(
        MODEL__TRUNK=vit, MODEL__HEAD__PARAMS=[["mlp", {"dims": [8, 8]}]],
        OPTIMIZER__multipliers=[{"match": "trunk.patch_embd.*"}],
    )  # fmt: skip
    with pytest.raises(ConfigError, match=r"(?s)multipliers.0.match.*trunk.patch_embed"):
        expect_fitting_shapes(run.config)  # before anything is launched


def test_mistakes() -> None:
    wrong = settings({"lr": 1.0}, {"match": "a", "lr": -1}, {"match": "a", "decay": 1.0})
    lines = list(section_problems(wrong))
    assert len(lines) == 3
    for line, said in zip(lines, ("0.match", "1.lr: expected 0", "2.decay"), strict=True):
        assert line.startswith(f"multipliers.{said}")
