"""DDP and reduction by hand give the gradient of one process with the whole batch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from sslengine.distributed import data_parallel
from sslengine.distributed.ranks import rank, world_size
from sslengine.errors import TrainingError
from tests.ranks import RankPool

CPU = torch.device("cpu")


def _model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 2)).double().eval()


def _inputs() -> Tensor:
    return torch.randn(8, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def _gradients(model: nn.Module) -> list[Tensor]:
    return [
        parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None
    ]


def _step(by_hand: bool) -> list[Tensor]:
    model = _model()
    wrapped = data_parallel.wrap(model, nn.Identity(), CPU, 25, False, broadcast_buffers=False)
    assert isinstance(wrapped, DistributedDataParallel)
    mine = _inputs().chunk(world_size())[rank()]
    if by_hand:
        with data_parallel.no_sync(wrapped):
            loss = wrapped(mine).pow(2).mean()
        loss.backward()
        data_parallel.manual_gradient_all_reduce(model)
    else:
        wrapped(mine).pow(2).mean().backward()
    return _gradients(model)


def test_both_ways_equal_one_process(two_ranks: RankPool) -> None:
    model = _model()
    model(_inputs()).pow(2).mean().backward()
    expected = _gradients(model)
    for by_hand in (False, True):
        for gradients in two_ranks.run(_step, by_hand):
            for got, want in zip(gradients, expected, strict=True):
                torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-14)


def _past_ddp() -> None:
    model = nn.Linear(2, 1)
    wrapped = data_parallel.wrap(model, nn.Identity(), CPU, 25, False, broadcast_buffers=False)
    with pytest.raises(TrainingError, match=r"^config\.TRAINER\.TRAIN_STEP_NAME: "):
        data_parallel.expect_called(wrapped)
    wrapped(compute=lambda: model(torch.ones(1, 2)).sum())
    data_parallel.expect_called(wrapped)


def test_a_step_that_goes_past_ddp_is_refused(two_ranks: RankPool) -> None:
    two_ranks.run(_past_ddp)


def _of_some_ranks() -> list[bool]:
    """Three parameters, of two types: of all ranks, of the last alone, of none."""
    last = rank() == world_size() - 1
    found = []
    for dtype in (torch.float32, torch.float64):
        parameters = [nn.Parameter(torch.ones(2, 3, dtype=dtype)) for _ in range(3)]
        mine = [torch.full((2, 3), 6.0, dtype=dtype), torch.ones(2, 3, dtype=dtype)]
        given = [mine[0], mine[1] if last else None, None]
        means = data_parallel.mean_of_gradients(parameters, given)
        found += [
            torch.equal(means[0], torch.full((2, 3), 6.0, dtype=dtype)) and means[0] is mine[0],
            torch.equal(means[1], torch.full((2, 3), 1 / world_size(), dtype=dtype)),
            means[2] is None,
        ]
    return found


def test_a_gradient_that_no_rank_has_is_none(two_ranks: RankPool) -> None:
    assert two_ranks.run(_of_some_ranks) == [[True] * 6] * 2
    assert _of_some_ranks() == [True] * 6


def _buffers() -> list[Tensor]:
    model = nn.BatchNorm1d(2)
    model.running_mean.fill_(rank() + 3.0)
    model.num_batches_tracked.fill_(rank() + 5)
    before = model.running_mean.clone()
    data_parallel.broadcast_all(model.buffers())
    return [before, model.running_mean, model.num_batches_tracked]


def test_buffers_become_those_of_rank_0(two_ranks: RankPool) -> None:
    for of_rank, (before, mean, tracked) in enumerate(two_ranks.run(_buffers)):
        assert before[0].item() == of_rank + 3.0
        assert mean.tolist() == [3.0, 3.0]
        assert tracked.item() == 5
