from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf

from sslengine.config.sections import section_problems
from sslengine.optim.options import OptimizerOptions
from sslengine.optim.schedules import schedule
from sslengine.registry import OPTIMIZERS

COSINE = schedule(name="cosine", start_value=0.04, end_value=0.4)


class Picky(torch.optim.SGD):
    """An optimizer of one's own, with an argument that must be given."""

    def __init__(self, parameters: Any, lr: float, weight_decay: float, depth: int) -> None:
        super().__init__(parameters, lr=lr, weight_decay=weight_decay)


PICKY = f"{__name__}:Picky"


def problems(**settings: Any) -> list[str]:
    options = OptimizerOptions(**settings)
    return [*section_problems(options), *options.check_chosen()]


def with_schedule(key: str, **settings: Any) -> OptimizerOptions:
    options = OptimizerOptions()
    schedulers = dataclasses.replace(options.param_schedulers, **{key: schedule(**settings)})
    return dataclasses.replace(options, param_schedulers=schedulers)


def test_vissl_defaults() -> None:
    plain: Any = OmegaConf.to_container(OmegaConf.structured(OptimizerOptions))
    expected = {
        "name": "sgd", "use_zero": False, "use_larc": False,
        "larc_config": {"clip": False, "eps": 1e-8, "trust_coefficient": 0.001},
        "weight_decay": 1e-4, "momentum": 0.9, "nesterov": False, "num_epochs": 90,
        "betas": [0.9, 0.999], "regularize_bn": False, "regularize_bias": True,
        "non_regularized_parameters": [],
        "head_optimizer_params": {
            "use_different_lr": False, "use_different_wd": False, "weight_decay": 1e-4,
        },
        "construct_single_param_group_only": False, "param_group_constructor": "default",
        "layer_wise_lr_decay": {"decay": 0.9, "as_last": []},
    }  # fmt: skip
    assert {key: plain[key] for key in expected} == expected
    schedulers = plain["param_schedulers"]
    assert schedulers["lr"] == schedulers["lr_head"]
    lr = {
        "auto_lr_scaling": {
            "auto_scale": False, "base_value": 0.1,
            "base_lr_batch_size": 256, "scaling_type": "linear",
            "warmup_start": "one_node",  # as VISSL has it
        },
        "name": "multistep", "update_interval": "epoch", "values": [0.1, 0.01, 0.001],
        "milestones": [30, 60],
    }  # fmt: skip
    assert {key: schedulers["lr"][key] for key in lr} == lr
    assert [schedulers[key] for key in ("weight_decay", "weight_decay_head", "momentum")] == [
        None
    ] * 3
    assert problems() == []


@pytest.mark.parametrize(
    ("settings", "beginning"),
    [
        ({"num_iterations": 0}, "num_iterations: expected 1 or more"),
        ({"accumulate": 0}, "accumulate: expected 1 or more"),
        ({"weight_decay": -1.0}, "weight_decay: expected 0 or more"),
        ({"momentum": 1.0}, "momentum: expected 0 or more and below 1"),
        ({"betas": [0.9]}, "betas: expected two numbers"),
        ({"betas": [0.9, 1.0]}, "betas.1: expected 0 or more and below 1"),
        ({"nesterov": True, "momentum": 0.0}, "nesterov: requires a momentum"),
        ({"nesterov": True, "dampening": 0.1}, "nesterov: requires a momentum"),
        ({"eta": 0.1}, "eta: sgd takes no such argument"),
        ({"name": "adam", "dampening": 0.1}, "dampening: adam takes no such argument"),
        ({"exclude_bias_and_norm": True}, "exclude_bias_and_norm: sgd takes no such argument"),
        ({"args": {"maximise": True}}, "args.maximise: SGD takes no such argument. Did you mean"),
        ({"args": {"lr": 1.0}}, "args.lr: SGD takes no such argument"),
        ({"args": {"momentum": 0.5}}, "args.momentum: set OPTIMIZER.momentum instead"),
        ({"name": PICKY}, "args.depth: Picky requires this argument"),
        ({"name": "lars", "use_larc": True}, "use_larc: LARS has layer-wise rates already"),
        (
            {"construct_single_param_group_only": True, "param_group_constructor": "dino"},
            "construct_single_param_group_only: requires param_group_constructor: default",
        ),
        ({"linear_eval_heads": [{"lr": 1.0}]}, "linear_eval_heads: requires param_group"),
        ({"param_group_constructor": "linear_eval_heads"}, "linear_eval_heads: expected one entry"),
    ],
)
def test_mistakes(settings: dict[str, Any], beginning: str) -> None:
    (problem,) = problems(**settings)
    assert problem.startswith(beginning)


def test_arguments_are_those_of_the_signature() -> None:
    options = OptimizerOptions(betas=[0.8, 0.9], eps=1e-5, nesterov=True)
    assert options.arguments(OPTIMIZERS.get("adam")) == {
        "weight_decay": 1e-4,
        "betas": (0.8, 0.9),
        "eps": 1e-5,
    }
    assert options.arguments(OPTIMIZERS.get("sgd")) == {
        "weight_decay": 1e-4,
        "momentum": 0.9,
        "nesterov": True,
    }


@pytest.mark.parametrize("entry", [{"lr": 1.0, "wd": 0.1}, {"weight_decay": 0.1}, {"lr": "big"}])
def test_a_wrong_entry_for_a_linear_head(entry: dict[str, Any]) -> None:
    (problem,) = problems(
        param_group_constructor="linear_eval_heads", linear_eval_heads=[{"lr": 1.0}, entry]
    )
    assert problem.startswith("linear_eval_heads.1.")


def test_schedule_of_heads_counts_only_where_heads_have_their_own() -> None:
    options = with_schedule("lr_head", name="cosine")
    assert list(section_problems(options)) == []
    options.head_optimizer_params.use_different_lr = True
    (problem,) = section_problems(options)
    assert problem.startswith("param_schedulers.lr_head.start_value")


def test_only_learning_rates_follow_the_batch_size() -> None:
    options = with_schedule("weight_decay", name="constant", value=0.1)
    options.param_schedulers.weight_decay.auto_lr_scaling.auto_scale = True  # type: ignore[union-attr]
    (problem,) = section_problems(options)
    assert problem.startswith("param_schedulers.weight_decay.auto_lr_scaling: only learning rates")


def test_momentum_needs_an_optimizer_that_has_it() -> None:
    options = with_schedule("momentum", name="constant", value=0.5)
    assert list(options.check_chosen()) == []
    options.name, options.args = PICKY, {"depth": 1}
    assert list(options.check_chosen()) == [
        f"param_schedulers.momentum: {PICKY} has neither momentum nor betas."
    ]


def test_heads_follow_the_trunk_unless_told_otherwise() -> None:
    options = OptimizerOptions()
    chosen = options.schedulers()
    assert chosen.keys() == {"lr", "lr_head"}
    assert chosen["lr_head"] is chosen["lr"]
    options.param_schedulers.weight_decay = COSINE
    assert options.schedulers()["weight_decay_head"] is COSINE
    options.head_optimizer_params.use_different_wd = True
    assert "weight_decay_head" not in options.schedulers()
    options.head_optimizer_params.use_different_lr = True
    assert options.schedulers()["lr_head"] is options.param_schedulers.lr_head
