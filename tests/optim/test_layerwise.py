"""What LARS and LARC share: weight decay, gradient scaling, step hooks, no waiting."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sslengine.optim.larc import with_larc
from sslengine.optim.lars import LARS
from sslengine.optim.layerwise import LayerwiseRates
from sslengine.optim.optimizers import SGD, Adam
from sslengine.optim.options import LarcOptions


class Halved(LayerwiseRates, SGD):
    """grads <- (grads + weight_decay * params) / 2"""

    def _rescale(
        self, params: list[Tensor], grads: list[Tensor], lr: float, weight_decay: float
    ) -> None:
        torch._foreach_add_(grads, params, alpha=weight_decay)
        torch._foreach_mul_(grads, 0.5)


def parameter(value: float = 4.0) -> nn.Parameter:
    p = nn.Parameter(torch.full((2, 2), value, dtype=torch.float64))
    p.grad = torch.full_like(p, 6.0)
    return p


@pytest.mark.parametrize(
    "make",
    [
        lambda p: LARS([p], weight_decay=0.1, exclude_bias_and_norm=True),
        lambda p: with_larc(SGD)([p], larc=LarcOptions(clip=True), lr=0.1, weight_decay=0.1),
        lambda p: with_larc(Adam)([p], larc=LarcOptions(), weight_decay=0.1),
    ],
)
def test_a_step_never_reads_a_value_on_the_host(make: Any) -> None:
    """Tensors without values: whoever asks for one gets an error."""
    p = nn.Parameter(torch.ones(2, 2, device="meta"))
    optimizer = make(p)
    for _ in range(2):
        p.grad = torch.ones_like(p)
        optimizer.step()


def test_weight_decay_counts_once_and_stays_in_the_group() -> None:
    p = parameter()
    optimizer = Halved([p], lr=1.0, weight_decay=0.5)
    optimizer.step()
    assert torch.equal(p, torch.full_like(p, 4.0 - (6.0 + 0.5 * 4.0) / 2))
    assert optimizer.param_groups[0]["weight_decay"] == 0.5


def test_weight_decay_returns_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    optimizer = Halved([parameter()], lr=1.0, weight_decay=0.5)

    def fail(*_: Any) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(SGD, "_init_group", fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        optimizer.step()
    assert optimizer.param_groups[0]["weight_decay"] == 0.5


def test_a_parameter_without_gradient_stays() -> None:
    p, q = parameter(), parameter()
    q.grad = None
    Halved([{"params": [p]}, {"params": [q]}], lr=1.0).step()
    assert torch.equal(q, torch.full_like(q, 4.0))


def test_closure() -> None:
    p = parameter()

    def loss() -> Tensor:
        p.grad = None
        total = (2.0 * p).sum()
        total.backward()
        return total

    assert Halved([p], lr=1.0).step(loss) == 2.0 * 4.0 * 4
    assert torch.equal(p, torch.full_like(p, 3.0))


def test_step_hooks_are_called_once_also_when_plain_sgd_has_been_used() -> None:
    torch.optim.SGD([parameter()], lr=1.0)
    SGD([parameter()], lr=1.0)
    optimizer = Halved([parameter()], lr=1.0)
    calls: list[str] = []
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    optimizer.step()
    assert calls == ["before", "after"]


@pytest.mark.parametrize("overflow", [False, True])
def test_gradient_scaler_is_served_on_the_device(overflow: bool) -> None:
    """What torch's GradScaler sets on an optimizer that says it takes it."""
    p = parameter()
    optimizer = Halved([p], lr=1.0, momentum=0.9, weight_decay=0.5, fused=True)
    assert optimizer._step_supports_amp_scaling
    p.grad = torch.full_like(p, torch.inf if overflow else 6.0 * 1024)
    optimizer.grad_scale = torch.tensor(1024.0)
    optimizer.found_inf = torch.tensor(float(overflow))  # type: ignore[attr-defined]
    optimizer.step()
    assert torch.equal(p, torch.full_like(p, 4.0 if overflow else 0.0))


def test_gradient_scaler_itself() -> None:
    p, q = parameter().float(), parameter().float()
    p, q = nn.Parameter(p.detach()), nn.Parameter(q.detach())
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    scaled = Halved([p], lr=0.1, momentum=0.9, weight_decay=0.5, fused=True)
    plain = Halved([q], lr=0.1, momentum=0.9, weight_decay=0.5)
    for factor in (float("inf"), 1.0, 2.0):
        scaled.zero_grad()
        scaler.scale((p * factor).sum()).backward()
        scaler.step(scaled)
        scaler.update()
        if factor != float("inf"):
            plain.zero_grad()
            (q * factor).sum().backward()
            plain.step()
        torch.testing.assert_close(p, q, rtol=1e-6, atol=0)
    assert scaler.get_scale() == 2.0**9
