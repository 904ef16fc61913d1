from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from sslengine.distributed.ranks import rank
from sslengine.losses.momentum import (
    copy_buffers,
    follow,
    frozen_copy,
    pairs_of,
    rank_0_statistics,
    rising_momentum,
)
from tests.launches import Launches
from tests.ranks import RankPool


def _model() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))


def test_a_copy_shares_nothing_and_takes_no_gradient() -> None:
    model = _model()
    copied = frozen_copy(model)
    for mine, theirs in zip(copied.state_dict().values(), model.state_dict().values(), strict=True):
        assert mine.data_ptr() != theirs.data_ptr()
        torch.testing.assert_close(mine, theirs)
    assert not any(p.requires_grad for p in copied.parameters())
    assert all(p.requires_grad for p in model.parameters())


def test_parameters_follow_and_buffers_stay() -> None:
    student, teacher = _model(), frozen_copy(_model())
    student(torch.randn(8, 3))
    before = {name: value.clone() for name, value in teacher.state_dict().items()}
    follow(pairs_of(teacher, student), 0.9)
    for name, parameter in teacher.named_parameters():
        expected = 0.9 * before[name] + 0.1 * dict(student.named_parameters())[name]
        torch.testing.assert_close(parameter.data, expected.data)
    torch.testing.assert_close(teacher[1].running_mean, before["1.running_mean"])
    assert not torch.equal(student[1].running_mean, teacher[1].running_mean)


def test_buffers_are_copied_at_once() -> None:
    student = nn.Sequential(*(nn.BatchNorm1d(4) for _ in range(20)))
    teacher = frozen_copy(student)
    student(torch.randn(8, 4))
    with Launches() as launched:
        copy_buffers(teacher, student)
    for own, theirs in zip(teacher.buffers(), student.buffers(), strict=True):
        assert torch.equal(own, theirs)
    assert launched.counts == {"_foreach_copy_": 2}  # statistics, and counts of batches
    assert not launched.slow


@pytest.mark.parametrize(("where", "expected"), [(0.0, 0.99), (1.0, 1.0), (0.5, 0.995)])
def test_the_momentum_rises_to_one(where: float, expected: float) -> None:
    assert rising_momentum(0.99, where) == pytest.approx(expected)
    quarter = 1 - 0.01 * (math.cos(math.pi / 4) + 1) / 2
    assert rising_momentum(0.99, 0.25) == pytest.approx(quarter)


def _statistics(shared: bool) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    model = _model()
    torch.manual_seed(rank())
    model(torch.randn(8, 3))
    if shared:
        rank_0_statistics(model)
    return model.state_dict()


def test_statistics_are_rank_0s_and_the_rest_stays(two_ranks: RankPool) -> None:
    kept, other = two_ranks.run(_statistics, shared=False)
    assert not torch.equal(kept["1.running_mean"], other["1.running_mean"])
    for state in two_ranks.run(_statistics, shared=True):
        for name, value in state.items():
            assert torch.equal(value, kept[name]), name
