"""Each tensor times its own number, against a loop; and what a GPU launches for it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sslengine.optim import optimizers
from sslengine.optim.optimizers import ScaleEach
from tests.launches import Launches

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
