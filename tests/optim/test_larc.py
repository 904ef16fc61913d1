"""LARC against its formula, in float64, before SGD and before Adam."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sslengine.optim.optimizers import SGD, Adam, add_larc
from sslengine.optim.options import LarcOptions

STEPS = 4
LR, DECAY, TRUST, EPS = 0.3, 0.02, 0.02, 1e-3


def start() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    # The last but one begins at zero, the last is so large that clipping matters for it.
    return [random(4, 3), random(5), torch.zeros(2, 2, dtype=torch.float64), 100 * random(2, 3)]


def gradients(step: int) -> list[Tensor]:
    """Those of the second parameter are zero at first."""
    generator = torch.Generator().manual_seed(100 + step)
    grads = [torch.randn(p.shape, generator=generator, dtype=torch.float64) for p in start()]
    if step < 2:
        grads[1].zero_()
    return grads


def rescaled(p: Tensor, g: Tensor, decay: float, clip: bool) -> Tensor:
    size, length = math.sqrt((p * p).sum()), math.sqrt((g * g).sum())
    if size == 0 or length == 0:
        return g
    rate = TRUST * size / (length + decay * size + EPS)
    if clip:
        rate = min(rate / LR, 1.0)
    return rate * (g + decay * p)


def by_the_formula(decay: float, clip: bool, plain: Any) -> list[Tensor]:
    """The rescaled gradients, one by one, into torch's optimizer without weight decay."""
    params = [nn.Parameter(p) for p in start()]
    optimizer = plain(params)
    for step in range(STEPS):
        for p, g in zip(params, gradients(step), strict=True):
            p.grad = rescaled(p.detach(), g, decay, clip)
        optimizer.step()
    return [p.detach() for p in params]


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("decay", [0.0, DECAY])
@pytest.mark.parametrize(
    ("optimizer_class", "settings", "torchs"),
    [
        (SGD, {"momentum": 0.9, "nesterov": True}, torch.optim.SGD),
        (Adam, {"betas": (0.8, 0.9)}, torch.optim.Adam),
    ],
)
def test_formula(
    optimizer_class: Any, settings: Any, torchs: Any, decay: float, clip: bool, fused: bool
) -> None:
    params = [nn.Parameter(p) for p in start()]
    optimizer = add_larc(optimizer_class)(
        [{"params": params[:2]}, {"params": params[2:]}],
        larc=LarcOptions(clip=clip, eps=EPS, trust_coefficient=TRUST),
        lr=LR,
        weight_decay=decay,
        fused=fused,
        **settings,
    )
    for step in range(STEPS):
        for p, g in zip(params, gradients(step), strict=True):
            p.grad = g
        optimizer.step()
    expected = by_the_formula(decay, clip, lambda each: torchs(each, lr=LR, **settings))
    torch.testing.assert_close([p.detach() for p in params], expected, rtol=1e-12, atol=1e-13)


def test_it_is_an_optimizer_of_the_inner_class_with_the_same_state_dict() -> None:
    larc_sgd = add_larc(SGD)
    assert larc_sgd is add_larc(SGD)
    assert issubclass(larc_sgd, torch.optim.SGD)
    p = nn.Parameter(torch.ones(2))
    p.grad = torch.ones(2)
    larc, sgd = larc_sgd([p], larc=LarcOptions(), lr=0.1, momentum=0.9), SGD([p], 0.1, 0.9)
    larc.step()
    sgd.step()
    mine, theirs = larc.state_dict(), sgd.state_dict()
    assert mine["param_groups"] == theirs["param_groups"]
    assert mine["state"][0].keys() == theirs["state"][0].keys()
