"""Each tensor times its own number, against a loop; and what a GPU launches for it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sslengine.optim import optimizers
from sslengine.optim.optimizers import ScaleEach
from tests.launches import Launches, why_slow

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


def test_room_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimizers, "CHUNK", 100)
    scale = ScaleEach()
    tensors = [torch.empty(30, device="meta") for _ in range(10)]
    scale(tensors, torch.empty(10, device="meta"))
    rooms = {each._buffer.untyped_storage()._cdata for each in scale._chunks}
    (held,) = {each._buffer.untyped_storage().nbytes() for each in scale._chunks}
    assert len(rooms) == 1
    assert held == 4 * 90
    assert [each.indices for each in scale._chunks] == [
        slice(0, 3), slice(3, 6), slice(6, 9), slice(9, 10)
    ]  # fmt: skip


MUL, COPY = torch.ops.aten._foreach_mul_.List, torch.ops.aten._foreach_copy_.default


@pytest.mark.parametrize(
    ("operation", "args", "expected"),
    [
        (MUL, ([torch.ones(2)], [torch.ones(2)]), ""),
        (MUL, ([torch.ones(2, 1)], [torch.ones(2, 1).as_strided((2, 1), (1, 9))]), ""),
        (MUL, ([torch.ones(2)], [torch.ones(())]), "beside"),
        (MUL, ([torch.ones(2, 3)], [torch.ones(3, 2).t()]), "beside"),
        (MUL, ([torch.ones(2)], [torch.ones(2).double()]), "float64 beside"),
        (MUL, ([torch.ones(2)], [torch.ones(1).expand(2)]), "not dense"),
        (COPY, ([torch.ones(2)], [torch.ones(2).double()]), ""),
        (COPY, ([torch.ones(2), torch.ones(2).double()], [torch.ones(2)] * 2), "float64 beside"),
        (torch.ops.aten._foreach_mul_.Tensor, ([torch.ones(2)], torch.ones(()).double()), "number"),
        (torch.ops.aten._foreach_mul_.Scalar, ([torch.ones(2).long()], 0.5), "a float for"),
        (torch.ops.aten.mul.Tensor, (torch.ones(2), torch.ones(2).double()), ""),
    ],
)
def test_what_cuda_runs_one_by_one(operation: object, args: object, expected: str) -> None:
    why = why_slow(operation, args)  # type: ignore[arg-type]
    assert expected in why
    assert bool(why) == bool(expected)
