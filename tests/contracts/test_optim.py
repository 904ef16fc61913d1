"""Every optimizer, schedule and way to group parameters that ships."""

from __future__ import annotations

from typing import Any

import pytest

from sslengine.registry import OPTIMIZERS, PARAM_GROUPS, SCHEDULERS
from sslengine.testing import Contract
from tests.contracts.cases import Of, cases, forgotten

VIT = (
    "config.MODEL.TRUNK={NAME:vision_transformer,VISION_TRANSFORMERS:{IMAGE_SIZE:16,PATCH_SIZE:8,"
    "NUM_LAYERS:2,HIDDEN_DIM:32,NUM_HEADS:2,MLP_DIM:32}}"
)
SIMSIAM = (
    "config.LOSS.name=simsiam_loss",
    "config.MODEL.HEAD.PARAMS=[[predictor_head,{dims:[32,16,8],predictor_dims:[8,4,8]}]]",
)
OPTIMIZERS_SMALL: dict[str, Of] = {
    "sgd": Of({"momentum": 0.9, "nesterov": True}),
    "adam": Of(),
    "adamw": Of({"betas": [0.9, 0.95]}),
    "rmsprop": Of(),
    "lars": Of({"momentum": 0.9}),
    "sgd with LARC": Of({"use_larc": True, "momentum": 0.9}, component="sgd"),
}
FALL = {"start_value": 0.1, "end_value": 0.001}
LINEAR = {"name": "linear", **FALL}
SCHEDULES: dict[str, Of] = {
    "constant": Of({"value": 0.1}),
    "linear": Of(FALL),
    "cosine": Of(FALL),
    "polynomial": Of({"base_value": 0.1, "power": 2}),
    "multistep": Of({"values": [0.1, 0.01], "milestones": [1]}),
    "step": Of({"values": [0.1, 0.01]}),
    "step_with_fixed_gamma": Of({"base_value": 0.1, "num_decays": 3, "gamma": 0.5}),
    "inverse_sqrt": Of({"start_value": 0.1, "warmup_interval_length": 0.1}),
    "cosine_warm_restart": Of({**FALL, "restart_interval_length": 0.3}),
    "composite": Of({"schedulers": [LINEAR, {"name": "cosine", **FALL}], "lengths": [0.5, 0.5],
                     "interval_scaling": ["rescaled", "fixed"]}),
}  # fmt: skip
GROUPS: dict[str, Of] = {
    "default": Of({"weight_decay": 0.01}),
    "dino": Of({"weight_decay": 0.01}, (VIT,)),
    "predictor_alone_is_head": Of({"weight_decay": 0.01}, SIMSIAM),
    "lr_decay": Of({"weight_decay": 0.01, "layer_wise_lr_decay": {"decay": 0.5}}, (VIT,)),
    "linear_eval_heads": Of(
        {"linear_eval_heads": [{"lr": 0.5, "weight_decay": 0.1}]},
        ("config.MODEL.FEATURE_EVAL_SETTINGS={EVAL_MODE_ON:true,FREEZE_TRUNK_ONLY:true}",),
    ),
}
LATE = ("accumulates", "ranks_stay_equal", "ranks_stay_equal_sharded",
        "trains_in_bfloat16", "first_loss_is_close_in_bfloat16")  # fmt: skip
# Schedules are told apart by their values: the rest is the optimizer's business.
OF_RUNS = (*LATE, "trains_every_parameter", "tests_change_nothing", "trains_with_finite_losses",
           "resumes_bit_exactly")  # fmt: skip


@pytest.mark.parametrize(("tried", "promise"), cases("optimizer", OPTIMIZERS_SMALL, LATE))
def test_optimizer(tried: Contract, promise: str) -> None:
    tried.keep(promise)


@pytest.mark.parametrize(("tried", "promise"), cases("schedule", SCHEDULES, OF_RUNS))
def test_schedule(tried: Contract, promise: str) -> None:
    tried.keep(promise)


@pytest.mark.parametrize(
    ("tried", "promise"), cases("param_groups", GROUPS, (*LATE, "resumes_bit_exactly"))
)
def test_param_groups(tried: Contract, promise: str) -> None:
    tried.keep(promise)


def test_none_is_forgotten() -> None:
    tables: Any = ((OPTIMIZERS, OPTIMIZERS_SMALL), (SCHEDULERS, SCHEDULES), (PARAM_GROUPS, GROUPS))
    assert [forgotten(*each) for each in tables] == [[], [], []]
