"""torch's optimizers are torch's own to test; here, that fused SGD starts well."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from sslengine.optim import optimizers


def parameters(count: int = 2) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(3)
    return [
        nn.Parameter(torch.randn(3, 4, generator=generator, dtype=torch.float64))
        for _ in range(count)
    ]


def gradient(step: int) -> Tensor:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(3, 4, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("nesterov", [False, True])
def test_fused_sgd_takes_a_parameter_whose_gradient_comes_late(nesterov: bool) -> None:
    """As with prototypes that are frozen for the first iterations."""
    fused, plain = parameters(), parameters()
    settings = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01, "nesterov": nesterov}
    runs = (
        (fused, optimizers.SGD(fused, **settings, fused=True)),
        (plain, torch.optim.SGD(plain, **settings, foreach=False)),
    )
    for step in range(4):
        for params, optimizer in runs:
            params[0].grad = gradient(step)
            params[1].grad = gradient(10 + step) if step >= 2 else None
            optimizer.step()
    torch.testing.assert_close(fused, plain, rtol=1e-14, atol=1e-14)


def test_fused_sgd_survives_an_overflow_in_the_first_step() -> None:
    """The gradient scaler makes it skip that step; the next is then a first step again."""
    (p,) = parameters(1)
    start = p.detach().clone()
    optimizer = optimizers.SGD([p], lr=0.1, momentum=0.9, fused=True)
    torch.full_like(p, torch.nan).clone()  # memory that the next allocation may find
    p.grad = torch.full_like(p, torch.inf)
    optimizer.found_inf = torch.ones(1)  # type: ignore[attr-defined]
    optimizer.step()
    assert torch.equal(p, start)
    assert torch.equal(optimizer.state[p]["momentum_buffer"], torch.zeros_like(p))
    optimizer.found_inf = torch.zeros(1)  # type: ignore[attr-defined]
    p.grad = gradient(0)
    optimizer.step()
    torch.testing.assert_close(p.detach(), start - 0.1 * gradient(0), rtol=1e-14, atol=1e-14)
