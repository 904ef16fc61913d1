"""LARS and LARC: their formulas in float64, decay, gradient scaling, step hooks, no waiting."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sslengine.optim.optimizers import LARS, SGD, Adam, LayerwiseRates, ScaleEach, add_larc
from sslengine.optim.options import LarcOptions
from tests.launches import Launches

STEPS = 4
LR, MOMENTUM, DECAY, ETA = 0.3, 0.9, 0.02, 0.01
TRUST, EPS = 0.02, 1e-3


def start() -> list[nn.Parameter]:
    """The third begins at zero, the last is so large that LARC clips its rate."""
    generator = torch.Generator().manual_seed(0)
    shapes: list[tuple[int, ...]] = [(4, 3), (5,), (2, 2), (2, 3, 3)]
    factors = (1.0, 1.0, 0.0, 100.0)
    return [
        nn.Parameter(factor * torch.randn(shape, generator=generator, dtype=torch.float64))
        for factor, shape in zip(factors, shapes, strict=True)
    ]


def gradients(step: int) -> list[Tensor]:
    """Those of the second and the last parameter are zero at first."""
    generator = torch.Generator().manual_seed(100 + step)
    grads = [torch.randn(p.shape, generator=generator, dtype=torch.float64) for p in start()]
    return [g * (step > 1 or number in (0, 2)) for number, g in enumerate(grads)]


def trained(make: Callable[[Any], Any], rescale: Any = lambda p, g: g) -> list[Tensor]:
    params = start()
    optimizer = make([{"params": params[:2]}, {"params": params[2:]}])
    for step in range(STEPS):
        for p, g in zip(params, gradients(step), strict=True):
            p.grad = rescale(p.detach(), g)
        optimizer.step()
    return [p.detach() for p in params]


def norm(tensor: Tensor) -> float:
    return math.sqrt((tensor * tensor).sum())


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("decay", [0.0, DECAY])
@pytest.mark.parametrize(
    ("ours", "settings", "torchs"),
    [
        (SGD, {"momentum": MOMENTUM, "nesterov": True}, torch.optim.SGD),
        (Adam, {"betas": (0.8, 0.9)}, torch.optim.Adam),
    ],
)
def test_larc_by_its_formula(
    ours: Any, settings: Any, torchs: Any, decay: float, clip: bool, fused: bool
) -> None:
    """Rescaled one by one, into torch's optimizer without weight decay."""

    def rescaled(p: Tensor, g: Tensor) -> Tensor:
        size, length = norm(p), norm(g)
        if size == 0 or length == 0:
            return g
        rate = TRUST * size / (length + decay * size + EPS)
        return (min(rate / LR, 1.0) if clip else rate) * (g + decay * p)

    larc = LarcOptions(clip=clip, eps=EPS, trust_coefficient=TRUST)
    how = {"larc": larc, "lr": LR, "weight_decay": decay, "fused": fused, **settings}
    found = trained(lambda groups: add_larc(ours)(groups, **how))
    expected = trained(lambda groups: torchs(groups, lr=LR, **settings), rescaled)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("decay", [0.0, DECAY])
@pytest.mark.parametrize("exclude", [False, True])
def test_lars_by_its_formula(decay: float, exclude: bool, fused: bool) -> None:
    """Without it, where p.ndim is 1: plain SGD."""

    def rescaled(p: Tensor, g: Tensor) -> Tensor:
        g = g + decay * p
        size, length = norm(p), norm(g)
        is_out = size == 0 or length == 0 or (exclude and p.ndim == 1)
        return g if is_out else g * ETA * size / length

    found = trained(lambda groups: LARS(groups, LR, MOMENTUM, decay, ETA, exclude, fused))
    expected = trained(lambda groups: torch.optim.SGD(groups, LR, MOMENTUM), rescaled)
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-14)


class Halved(LayerwiseRates, SGD):
    """grads <- (grads + weight_decay * params) / 2"""

    def _rates(
        self, params: list[Tensor], grads: list[Tensor], lr: float, weight_decay: float
    ) -> tuple[list[Tensor], Tensor]:
        torch._foreach_add_(grads, params, alpha=weight_decay)
        return grads, torch.full((len(grads),), 0.5, dtype=grads[0].dtype)


def parameter(value: float = 4.0) -> nn.Parameter:
    p = nn.Parameter(torch.full((2, 2), value, dtype=torch.float64))
    p.grad = torch.full_like(p, 6.0)
    return p


FORMS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "lars": lambda p: LARS(p, weight_decay=0.1, exclude_bias_and_norm=True),
    "larc": lambda p: add_larc(SGD)(p, larc=LarcOptions(clip=True), lr=0.1, weight_decay=0.1),
}


@pytest.mark.parametrize("form", FORMS)
def test_launches_do_not_grow_with_the_number_of_parameters(form: str) -> None:
    """Of weights in channels-last, biases, and a group of its own, on no device at all."""
    totals = []
    for layers in (3, 50):
        weights = [nn.Parameter(torch.ones(8, 4, 3, 3, device="meta").to(
            memory_format=torch.channels_last)) for _ in range(layers)]  # fmt: skip
        others = [nn.Parameter(torch.ones(8, device="meta")) for _ in range(layers)]
        optimizer = FORMS[form](
            [{"params": weights, "foreach": True}, {"params": others, "foreach": True}]
        )
        for _ in range(2):
            for each in (*weights, *others):
                each.grad = torch.ones_like(each)
            with Launches() as launched:
                optimizer.step()
        assert not launched.slow
        totals.append(launched.total)
    assert totals[0] == totals[1] < 45, totals


@pytest.mark.parametrize("form", FORMS)
def test_a_device_moves_parameters_as_a_cpu_does(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved = []
    for of_a_device in (False, True):
        if of_a_device:
            monkeypatch.setattr(ScaleEach, "__call__", ScaleEach.scale_chunks)
        generator = torch.Generator().manual_seed(0)
        shapes = [(8, 4, 3, 3), (8,), (5, 8), (5,)]
        params = [nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]
        optimizer = FORMS[form]([{"params": params[:1]}, {"params": params[1:]}])
        for step in range(4):
            for each in params[step == 2 :]:  # once without the first, as a frozen one
                each.grad = torch.randn(each.shape, generator=generator)
            optimizer.step()
            optimizer.zero_grad()
        moved.append(params)
    assert all(map(torch.equal, *moved))


def test_step_hooks_are_called_once_also_when_plain_sgd_has_been_used() -> None:
    torch.optim.SGD([parameter()], lr=1.0)
    SGD([parameter()], lr=1.0)
    optimizer = Halved([parameter()], lr=1.0)
    calls: list[str] = []
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    optimizer.step()
    assert calls == ["before", "after"]


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
