from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn, optim

from sslengine.errors import ConfigError
from sslengine.hooks.gradients import ClipGradients, FreezeParameters
from sslengine.precision import Precision


def _task(**changes: Any) -> Any:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    model(torch.ones(2, 3) * 100).pow(2).sum().backward()
    optimizer = SimpleNamespace(inner=optim.SGD(model.parameters(), lr=0.1))
    values = {
        "base_model": model,
        "learner": model,
        "optimizer": optimizer,
        "precision": Precision(),
        "iteration": 0,
    }
    return SimpleNamespace(**{**values, "updating": True, **changes})


def test_frozen_until_its_iteration() -> None:
    hook = FreezeParameters([("module.1.weight", 3)])
    task = _task()
    hook.on_start(task)
    hook.on_backward(task)
    assert task.base_model[1].weight.grad is None
    assert task.base_model[1].bias.grad is not None
    task = _task(iteration=3)
    hook.on_start(task)
    hook.on_backward(task)
    assert task.base_model[1].weight.grad is not None


def test_a_name_that_the_model_does_not_have() -> None:
    with pytest.raises(ConfigError, match=r"no parameter '1.wieght'. Did you mean '1.weight'"):
        FreezeParameters([("module.1.wieght", 3)]).on_start(_task())


@pytest.mark.parametrize("norm_type", [2.0, float("inf")])
def test_clipping_is_torchs_own(norm_type: float) -> None:
    task = _task()
    reference = copy.deepcopy(task.base_model)
    for parameter, own in zip(reference.parameters(), task.base_model.parameters(), strict=True):
        parameter.grad = own.grad.clone()
    torch.nn.utils.clip_grad_norm_(reference.parameters(), 0.5, norm_type)
    ClipGradients(0.5, norm_type).on_backward(task)
    for parameter, own in zip(reference.parameters(), task.base_model.parameters(), strict=True):
        assert torch.equal(parameter.grad, own.grad)


def test_clipping_waits_for_the_whole_group() -> None:
    task = _task(updating=False)
    before = task.base_model[0].weight.grad.clone()
    ClipGradients(0.5, 2.0).on_backward(task)
    assert torch.equal(task.base_model[0].weight.grad, before)


def authors_clip(parameters: Any, clip: float) -> None:
    """What DINO's code does to each gradient, one after the other."""
    for parameter in parameters:
        length = parameter.grad.double().square().sum().sqrt().item()
        parameter.grad *= min(1.0, clip / (length + 1e-6))


def test_each_gradient_by_itself() -> None:
    task = _task()
    parameters = list(task.base_model.parameters())
    parameters[0].grad.mul_(1e-7)  # one that is short enough stays as it is
    reference = copy.deepcopy(task.base_model)
    for parameter, own in zip(reference.parameters(), parameters, strict=True):
        parameter.grad = own.grad.clone()
    authors_clip(reference.parameters(), 3.0)
    ClipGradients(3.0, 2.0, per_parameter=True).on_backward(task)
    for parameter, own in zip(reference.parameters(), parameters, strict=True):
        torch.testing.assert_close(own.grad, parameter.grad)
    lengths = [own.grad.norm().item() for own in parameters]
    assert lengths[0] < 1.0
    assert lengths[1:] == pytest.approx([3.0] * 3)


def test_without_any_gradient() -> None:
    task = _task()
    for parameter in task.base_model.parameters():
        parameter.grad = None
    ClipGradients(3.0, 2.0, per_parameter=True).on_backward(task)
