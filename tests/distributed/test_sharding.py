"""Whole sharded runs: tests/integration/test_sharded.py."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from sslengine.distributed.data_parallel import no_sync
from sslengine.distributed.ranks import rank, world_size
from sslengine.distributed.sharding import (
    Policy,
    copy_into,
    is_sharded,
    like,
    local,
    mesh_of,
    norms,
    shard,
    whole,
)  # fmt: skip
from tests.engine.sharded import needs_shards
from tests.ranks import RankPool

pytestmark = needs_shards
CPU = torch.device("cpu")


def _net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Sequential(nn.Tanh(), nn.Linear(6, 3)))


def _sharded(net: nn.Sequential, policy: Policy | None = None) -> nn.Sequential:
    units = [each for each in net if any(True for _ in each.parameters())]
    shard(net, units, mesh_of(CPU), policy or Policy())
    return net


def _images(of: int) -> Tensor:
    return torch.randn(5, 4, generator=torch.Generator().manual_seed(of))


def _shares() -> tuple[bool, list[int], list[bool]]:
    net, plain = _sharded(_net()), _net()
    alike = [
        torch.equal(whole(one), other)
        for one, other in zip(net.parameters(), plain.parameters(), strict=True)
    ]
    return is_sharded(net), [local(p).shape[0] for p in net.parameters()], alike


def test_each_rank_holds_its_rows(four_ranks: RankPool) -> None:
    results = four_ranks.run(_shares)
    assert all(cut and all(alike) for cut, _, alike in results)
    # 6, 6, 3 and 3 rows among four: the last ones get what is left.
    assert [rows for _, rows, _ in results] == [
        [2, 2, 1, 1], [2, 2, 1, 1], [2, 2, 1, 1], [0, 0, 0, 0]
    ]  # fmt: skip


def _norms() -> tuple[list[float], list[float]]:
    tensors = [torch.arange(7.0), torch.ones(3, 2), torch.zeros(4)]
    net = nn.Module()
    net.parts = nn.ParameterList(tensors)
    shard(net, [], mesh_of(CPU), Policy())
    (lengths, again) = norms(list(net.parts), list(net.parts))
    return lengths.tolist(), again.tolist()


def test_norms_are_those_of_the_whole(four_ranks: RankPool) -> None:
    expected = [91**0.5, 6**0.5, 0.0]  # 0 + 1 + 4 + 9 + 16 + 25 + 36
    for pair in four_ranks.run(_norms):
        for lengths in pair:
            assert lengths == pytest.approx(expected, rel=1e-6)


def _to_and_fro() -> tuple[Tensor, Tensor, Tensor]:
    net = _sharded(_net())
    weight = net[0].weight
    value = torch.arange(24.0).view(6, 4)
    cut = like(value, weight)
    copy_into(weight, value)
    back = torch.zeros(6, 4)
    copy_into(back, weight)
    return whole(cut), whole(weight.detach()), back


def test_values_go_into_shards_and_back(two_ranks: RankPool) -> None:
    for values in two_ranks.run(_to_and_fro):
        for value in values:
            assert torch.equal(value, torch.arange(24.0).view(6, 4))


def _gradients(meet: list[bool]) -> list[Tensor]:
    net = _sharded(_net())
    for step, together in enumerate(meet):
        with torch.enable_grad() if together else no_sync(net):
            net(_images(10 * step + rank())).square().sum().backward()
    return [whole(p.grad) for p in net.parameters() if p.grad is not None]


def test_gradients_are_means_over_ranks_of_sums_over_batches(two_ranks: RankPool) -> None:
    net = _net()
    for step in range(3):
        for of in range(2):
            (net(_images(10 * step + of)).square().sum() / 2).backward()
    for got in two_ranks.run(_gradients, [False, False, True]):
        for one, parameter in zip(got, net.parameters(), strict=True):
            torch.testing.assert_close(one, parameter.grad, rtol=1e-5, atol=1e-6)


def _mixed(reduce: torch.dtype | None) -> tuple[torch.dtype, Tensor, list[Tensor], torch.dtype]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 3)))
    _sharded(net, Policy(torch.bfloat16, reduce))
    output = net(_images(rank()))
    output.sum().backward()
    grads = [whole(p.grad) for p in net.parameters() if p.grad is not None]
    return output.dtype, output.detach(), grads, net[1][0].running_mean.dtype


@pytest.mark.parametrize("reduce", [None, torch.float32])
def test_mixed_precision(two_ranks: RankPool, reduce: torch.dtype | None) -> None:
    """As torch's own layers in bfloat16, but for the batch norm, between them in float32."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 3)))
    first, last = copy.deepcopy(net[0]).bfloat16(), copy.deepcopy(net[1][1]).bfloat16()
    for of, (dtype, got, grads, statistics) in enumerate(two_ranks.run(_mixed, reduce)):
        norm = copy.deepcopy(net[1][0])
        want = last(norm(first(_images(of).bfloat16()).float()).bfloat16()).float()
        assert dtype == statistics == torch.float32
        torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-6)
        assert len(grads) == 6
        assert all(each.dtype == torch.float32 for each in grads)


def _overflow() -> tuple[bool, float]:
    """The gradient of one rank's share alone overflows."""
    net = _sharded(_net())
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    before = [whole(p).clone() for p in net.parameters()]
    scaler.scale(net(_images(rank())).sum()).backward()
    grad = local(net[0].weight.grad)
    if rank() == world_size() - 1:
        grad[0, 0] = float("inf")
    scaler.step(optimizer)
    scaler.update()
    same = all(torch.equal(whole(p), old) for p, old in zip(net.parameters(), before, strict=True))
    return same, scaler.get_scale()


def test_an_overflow_on_one_rank_is_one_on_all(two_ranks: RankPool) -> None:
    assert two_ranks.run(_overflow) == [(True, 2.0), (True, 2.0)]
