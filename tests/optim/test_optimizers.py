"""LARS and LARC: their formulas in float64, decay, gradient scaling, step hooks, no waiting."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sslengine.optim import optimizers
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


# ---- each tensor times its own number, against a loop; and what a GPU launches for it


SHAPES = [(4, 3, 2, 2), (5,), (), (0, 3), (7, 1, 1, 1), (6, 2, 1, 1), (40,), (3, 3, 3, 3)]


def some(seed: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    made = [torch.randn(shape, generator=generator).to(dtype) for shape in SHAPES]
    made[0] = made[0].to(memory_format=torch.channels_last)
    made[-1] = made[-1].transpose(0, 3)
    gaps = torch.randn(4, 6, generator=generator).to(dtype)[:, ::2]
    return [*made, gaps]


def one_by_one(tensors: list[Tensor], factors: Tensor) -> list[Tensor]:
    return [each * factor for each, factor in zip(tensors, factors, strict=True)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("room", [1, 50, 10**6])
def test_a_loop_gives_the_same(
    room: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(optimizers, "CHUNK", room)
    scale = ScaleEach()
    for call in range(3):
        tensors = some(call, dtype)[call // 2 :]  # in the last call the list is another
        factors = torch.linspace(-1.0, 3.0, len(tensors)).to(dtype)
        expected = one_by_one(tensors, factors)
        scale.scale_chunks(tensors, factors)
        assert all(map(torch.equal, tensors, expected))


def test_hundreds_of_tensors_are_some_launches() -> None:
    def like_a_network() -> list[Tensor]:
        made = [torch.empty(64, 64, 3, 3, device="meta") for _ in range(100)]
        made = [each.to(memory_format=torch.channels_last) for each in made]
        return made + [torch.empty(64, device="meta") for _ in range(100)]

    factors = torch.empty(200, device="meta")
    scale = ScaleEach()
    for _ in range(2):
        tensors = like_a_network()
        with Launches() as launched:
            scale(tensors, factors)
        assert not launched.slow
        assert launched.counts == {"copy_": 1, "cat": 1, "_foreach_mul_": 1}
    with Launches() as launched:
        torch._foreach_mul_(tensors, factors.unbind())
    assert launched.total == 200


# ---- fused SGD starts well


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
