"""OPTIMIZER.multipliers: factors by names, on top of all others."""

from __future__ import annotations

from typing import Any

import pytest
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
from sslengine.optim.schedules import schedule
from tests.config.recipes import resolved

SMALL: dict[str, Any] = {"IMAGE_SIZE": 16, "PATCH_SIZE": 8, "HIDDEN_DIM": 8, "MLP_DIM": 8,
                         "NUM_LAYERS": 2, "NUM_HEADS": 1}  # fmt: skip
PATCHES = {"match": "trunk.patch_embed.*", "lr": 0.2}
NORMS = {"match": "*norm*", "weight_decay": 0.1}
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
    rates = found(PATCHES, NORMS, METHODS, regularize_bn=True)
    assert rates["trunk.patch_embed.proj.weight"] == pytest.approx((0.02, 0.4))
    assert rates["trunk.blocks.1.norm1.weight"] == pytest.approx((0.1, 0.04))
    assert rates["trunk.blocks.1.attn.proj.weight"] == pytest.approx((0.1, 0.4))
    assert rates["heads.0.weight"] == pytest.approx((0.1, 0.4))
    assert rates["loss.prototypes"] == pytest.approx((0.6, 0.05))


def test_with_layer_decay_and_without_weight_decay() -> None:
    decay: Any = {"param_group_constructor": "lr_decay", "regularize_bn": False}
    plain, rates = found(**decay), found(PATCHES, NORMS, **decay)
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
        found(NORMS, {"match": "trunk.patch_embd.*"})
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
