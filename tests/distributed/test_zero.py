from __future__ import annotations

import torch
from torch import nn, optim

from sslengine.distributed.ranks import rank
from sslengine.distributed.zero import shard_optimizer, whole_state
from tests.ranks import RankPool


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))


def _train(sharded: bool) -> tuple[list[torch.Tensor], int, bool]:
    model = _model()
    groups = [{"params": list(model.parameters())}]
    if sharded:
        optimizer = shard_optimizer(groups, optim.Adam, lr=0.01)
    else:
        optimizer = optim.Adam(groups, lr=0.01)
    for step in range(3):
        optimizer.zero_grad()
        data = torch.full((2, 3), float(step + 1))
        model(data).pow(2).mean().backward()
        optimizer.step()
    state = whole_state(optimizer)
    held = len(optimizer.optim.state) if sharded else len(optimizer.state)
    return [p.detach() for p in model.parameters()], held, bool(state)


def test_sharded_steps_equal_plain_ones_and_rank_0_gets_the_whole_state(
    two_ranks: RankPool,
) -> None:
    plain, _, _ = _train(sharded=False)
    results = two_ranks.run(_train, True)
    for parameters, _, _ in results:
        for got, want in zip(parameters, plain, strict=True):
            assert torch.equal(got, want)
    assert sum(held for _, held, _ in results) == len(plain)  # nobody holds all of it
    assert [has_state for _, _, has_state in results] == [True, False]
    assert rank() == 0
