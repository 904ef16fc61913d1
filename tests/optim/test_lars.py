"""LARS against its formula, in float64, parameter by parameter."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from sslengine.optim.optimizers import LARS

STEPS = 4
LR, MOMENTUM, DECAY, ETA = 0.3, 0.9, 0.02, 0.01


def start() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    return [random(4, 3), random(5), torch.zeros(2, 2, dtype=torch.float64), random(2, 3, 3)]


def gradients(step: int) -> list[Tensor]:
    """Those of the last parameter are zero at first."""
    generator = torch.Generator().manual_seed(100 + step)
    grads = [torch.randn(p.shape, generator=generator, dtype=torch.float64) for p in start()]
    if step < 2:
        grads[-1].zero_()
    return grads


def by_the_formula(decay: float, exclude: bool) -> list[Tensor]:
    params = start()
    momenta = [torch.zeros_like(p) for p in params]
    for step in range(STEPS):
        for p, m, gradient in zip(params, momenta, gradients(step), strict=True):
            g = gradient + decay * p
            size, length = math.sqrt((p * p).sum()), math.sqrt((g * g).sum())
            if size > 0 and length > 0 and not (exclude and p.ndim == 1):
                g = g * ETA * size / length
            m.mul_(MOMENTUM).add_(g)
            p.sub_(LR * m)
    return params


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("decay", [0.0, DECAY])
@pytest.mark.parametrize("exclude", [False, True])
def test_formula(decay: float, exclude: bool, fused: bool) -> None:
    params = [nn.Parameter(p) for p in start()]
    groups = [{"params": params[:2]}, {"params": params[2:]}]
    optimizer = LARS(groups, LR, MOMENTUM, decay, ETA, exclude_bias_and_norm=exclude, fused=fused)
    for step in range(STEPS):
        for p, g in zip(params, gradients(step), strict=True):
            p.grad = g
        optimizer.step()
    expected = by_the_formula(decay, exclude)
    torch.testing.assert_close([p.detach() for p in params], expected, rtol=1e-13, atol=1e-14)


def test_excluded_parameters_are_plain_sgd() -> None:
    mine, theirs = nn.Parameter(start()[1]), nn.Parameter(start()[1])
    lars = LARS([mine], LR, MOMENTUM, DECAY, ETA, exclude_bias_and_norm=True)
    sgd = torch.optim.SGD([theirs], LR, MOMENTUM, weight_decay=DECAY)
    for step in range(STEPS):
        for p, optimizer in ((mine, lars), (theirs, sgd)):
            p.grad = gradients(step)[1]
            optimizer.step()
    torch.testing.assert_close(mine, theirs, rtol=1e-14, atol=0)


def test_state_dict_is_that_of_sgd() -> None:
    p = nn.Parameter(torch.ones(2))
    p.grad = torch.ones(2)
    lars, sgd = LARS([p], lr=0.1), torch.optim.SGD([p], lr=0.1, momentum=0.9)
    lars.step()
    sgd.step()
    mine, theirs = lars.state_dict(), sgd.state_dict()
    assert mine["param_groups"][0].keys() == theirs["param_groups"][0].keys()
    assert mine["state"][0].keys() == theirs["state"][0].keys()
