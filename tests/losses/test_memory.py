"""Memories and copies that follow a model."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from sslengine.distributed.ranks import rank
from sslengine.distributed.sharding import local, whole
from sslengine.losses import memory as module
from sslengine.losses.memory import (
    move_towards,
    overwrite,
    random_rows,
    zero_rows,
)
from sslengine.models.momentum import (
    copy_buffers,
    follow,
    frozen_copy,
    pairs_of,
    rank_0_statistics,
    rising_momentum,
)
from tests.largest import Largest, peak_bytes
from tests.launches import Launches
from tests.ranks import RankPool


@st.composite
def _writes(draw: st.DrawFn) -> tuple[int, list[int], list[bool], int]:
    size = draw(st.integers(1, 6))
    rows = draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=8))
    counted = draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows)))
    return size, rows, counted, draw(st.integers(0, 10_000))


@given(_writes())
def test_the_last_of_those_that_count_stays(
    writes: tuple[int, list[int], list[bool], int],
) -> None:
    size, rows, counted, seed = writes
    generator = torch.Generator().manual_seed(seed)
    memory = torch.randn(size, 2, 3, generator=generator)
    values = torch.randn(len(rows), 2, 3, generator=generator)
    expected = memory.clone()
    for row, value, counts in zip(rows, values, counted, strict=True):
        if counts:
            expected[row] = value
    overwrite(memory, torch.tensor(rows), values, torch.tensor(counted))
    assert torch.equal(memory, expected)


@given(_writes(), st.sampled_from([0.0, 0.5, 0.99, 1.0]))
def test_rows_move_by_the_momentum_and_keep_their_length(
    writes: tuple[int, list[int], list[bool], int], momentum: float
) -> None:
    size, rows, counted, seed = writes
    generator = torch.Generator().manual_seed(seed)
    memory = torch.randn(size, 4, generator=generator, dtype=torch.float64)
    values = torch.randn(len(rows), 4, generator=generator, dtype=torch.float64)
    before, expected = memory.clone(), memory.clone()
    for row, value, counts in zip(rows, values, counted, strict=True):
        if counts:
            moved = momentum * before[row] + (1 - momentum) * value
            expected[row] = moved / moved.norm()
    move_towards(memory, torch.tensor(rows), values, torch.tensor(counted), momentum)
    torch.testing.assert_close(memory, expected, rtol=1e-12, atol=1e-12)


def test_random_rows() -> None:
    torch.manual_seed(0)
    rows = random_rows(2000, 32, unit_length=False)
    assert rows.norm(dim=1).mean().item() == pytest.approx(1.0, abs=0.02)
    assert rows.abs().max().item() <= (3 / 32) ** 0.5
    assert rows.norm(dim=1).std().item() > 0.01
    unit = random_rows(20, 32, unit_length=True)
    torch.testing.assert_close(unit.norm(dim=1), torch.ones(20))


@pytest.mark.parametrize("unit_length", [True, False])
def test_while_it_is_made_a_memory_takes_little_more_than_itself(
    unit_length: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "DRAWN_AT_ONCE", 1000)
    piece, memory = 4 * 64 * 1000, 4 * 64 * 40_000
    assert memory <= peak_bytes(lambda: random_rows(40_000, 64, unit_length)) <= memory + 4 * piece
    assert peak_bytes(lambda: zero_rows(40_000, 64)) == memory


@pytest.mark.parametrize(
    ("sharded", "rows", "ranks", "expected"),
    [
        ("auto", 2**21, 2, False),  # 1 GiB at 128 numbers
        ("auto", 2**21 + 1, 2, True),
        ("auto", 2**30, 1, False),
        (True, 1, 1, True),
        (False, 2**30, 2, False),
    ],
)
def test_a_large_memory_is_sharded_by_itself(
    sharded: bool | str, rows: int, ranks: int, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "world_size", lambda: ranks)
    assert module.is_shared(sharded, rows, 2, 64) is expected


def test_nothing_grows_with_the_square_of_the_batch() -> None:
    memory, rows = torch.randn(50, 3), torch.arange(500) % 50
    with Largest() as made:
        overwrite(memory, rows, torch.randn(500, 3), torch.ones(500, dtype=torch.bool))
    assert made.elements == 500 * 3


# ---- shared out among ranks

SAMPLES = 11


def _writes_of_ranks() -> tuple[torch.Tensor, torch.Tensor]:
    """A memory shared out, then written to as the whole one; and that one."""
    torch.manual_seed(0)
    shared = random_rows(SAMPLES, 4, unit_length=True, shared=True)
    torch.manual_seed(0)
    one = random_rows(SAMPLES, 4, unit_length=True)
    assert torch.equal(whole(shared), one)
    assert local(shared).shape[0] <= one.shape[0]
    for _ in range(3):
        rows, counted = torch.randint(SAMPLES, (9,)), torch.rand(9) < 0.7
        values = torch.randn(9, 4)
        for memory in (shared, one):
            overwrite(memory, rows, values, counted)
            move_towards(memory, rows.flip(0), values, counted, 0.5)
    return whole(shared), one


@pytest.mark.parametrize("pool", [2, 4], indirect=True)
def test_what_is_shared_out_holds_what_the_whole_would(pool: RankPool) -> None:
    expected = _writes_of_ranks()[1]
    for shared, one in pool.run(_writes_of_ranks):
        assert torch.equal(shared, one)
        assert torch.equal(one, expected)


@pytest.mark.parametrize("at_once", [1, 4, 100])
def test_rows_are_drawn_alike_whatever_is_drawn_at_once(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "DRAWN_AT_ONCE", at_once)
    torch.manual_seed(0)
    shared = random_rows(SAMPLES, 5, unit_length=False, shared=True)
    torch.manual_seed(0)
    assert torch.equal(shared, random_rows(SAMPLES, 5, unit_length=False))


def _empty_of_ranks() -> tuple[int, torch.Tensor]:
    memory = zero_rows(2, 3, 4, shared=True)
    overwrite(memory, torch.tensor([1]), torch.ones(1, 3, 4), torch.tensor([True]))
    return local(memory).numel(), whole(memory)


def test_ranks_without_rows(four_ranks: RankPool) -> None:
    results = four_ranks.run(_empty_of_ranks)
    assert [held for held, _ in results] == [12, 12, 0, 0]
    assert all(memory.flatten(1).sum(dim=1).tolist() == [0.0, 12.0] for _, memory in results)
    assert zero_rows(2, 3, 4).shape == (2, 3, 4)


# ---- momentum


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
    follow(pairs_of(teacher, student.parameters()), 0.9)
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
