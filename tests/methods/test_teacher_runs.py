"""What every method with a slow copy of the model must pass."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sslengine.distributed.ranks import rank, world_size
from sslengine.engine import loop
from sslengine.engine.task import SelfSupervisionTask
from sslengine.hooks.events import Hook
from tests.engine.runs import make_task, same, train
from tests.engine.test_task import NoWaiting
from tests.ranks import RankPool

Momentum = Callable[[int, int], float]


class Trail(Hook):
    """Where the model has been: its parameters at the start and after each update."""

    def __init__(self) -> None:
        self.points: list[list[Tensor]] = []

    def on_start(self, task: Any) -> None:
        self.points.append([each.detach().double() for each in task.base_model.parameters()])

    on_update = on_start


def assert_teacher_follows(folder: Path, name: str, momentum: Momentum, **changes: Any) -> None:
    """The copy called `name` ends where the paper's recursion does.

    momentum(k, K): that of update k, from 0, of K.
    """
    trail = Trail()
    task = train(folder, [trail], **changes)
    expected, *rest = trail.points
    for k, student in enumerate(rest):
        m = momentum(k, len(rest))
        expected = [m * t + (1 - m) * s for t, s in zip(expected, student, strict=True)]
    teacher = [each.double() for each in getattr(task.loss, name).parameters()]
    far = 0.0
    for got, there, student in zip(teacher, expected, rest[-1], strict=True):
        torch.testing.assert_close(got, there, rtol=1e-5, atol=1e-6)
        far = max(far, (got - student).abs().max().item())
    assert far > 1e-3  # it follows, it is not the model


def assert_attached_anew(folder: Path, name: str, **changes: Any) -> None:
    """Initial weights that are loaded into the model reach its copy, which shares nothing."""
    task = make_task(folder, [], **changes)
    with torch.no_grad():
        for each in task.base_model.parameters():
            each.add_(1.0)
    teacher = getattr(task.loss, name).module
    assert not same(dict(teacher.named_parameters()), dict(task.base_model.named_parameters()))
    task.load_initial_weights()
    teacher = getattr(task.loss, name).module
    assert same(teacher.state_dict(), task.base_model.state_dict())
    mine = {each.data_ptr() for each in teacher.state_dict().values()}
    theirs = {each.data_ptr() for each in task.base_model.state_dict().values()}
    assert not mine & theirs
    assert not any(each.requires_grad for each in teacher.parameters())


def assert_state_is_the_same_on_ranks(pool: RankPool, folder: Path, **changes: Any) -> None:
    """After 20 steps, without SyncBN, without a host that waits: every buffer of the method."""
    length = {
        "OPTIMIZER__num_epochs": None,
        "OPTIMIZER__num_iterations": 20,
        "DATA__TRAIN__BATCHSIZE_PER_REPLICA": 2,
    }
    ranks = {"DISTRIBUTED__NUM_PROC_PER_NODE": pool.world_size, "LOG_FREQUENCY": 1000}
    first, *others = pool.run(_state_after, folder, {**changes, **length, **ranks})
    for other in others:
        assert same(first, other)


def _state_after(folder: Path, changes: dict[str, Any]) -> dict[str, Tensor]:
    task = make_task(folder / str(rank()), [], **changes)
    before = {name: each.clone() for name, each in task.loss.state_dict().items()}
    loop.run(task)
    after: dict[str, Tensor] = task.loss.state_dict()
    moved = [name for name in after if not torch.equal(before[name], after[name])]
    assert len(moved) > 0.9 * len(after)
    assert world_size() > 1
    return after


def assert_steps_do_not_wait(folder: Path, **changes: Any) -> None:
    """Three train steps in which the host never asks the device for a value."""
    task = make_task(folder, [], LOG_FREQUENCY=1000, **changes)
    _three_steps(task)
    assert task.iteration == 3
    task.close()


def assert_steps_on_ranks_do_not_wait(pool: RankPool, folder: Path, **changes: Any) -> None:
    pool.run(_steps_on_rank, folder, {**changes, "DISTRIBUTED__NUM_PROC_PER_NODE": pool.world_size})


def _steps_on_rank(folder: Path, changes: dict[str, Any]) -> None:
    changes = {**changes, "DATA__TRAIN__BATCHSIZE_PER_REPLICA": 2}
    assert_steps_do_not_wait(folder / str(rank()), **changes)


def _three_steps(task: SelfSupervisionTask) -> None:
    task.on_start()
    task.start_phase()
    task.on_phase_start()
    batches = [task.state.next_batch() for _ in range(3)]  # reading data is the host's own business
    task.state.reading.batches = iter(batches)
    guard = NoWaiting()
    guard.forbid()
    try:
        for _ in batches:
            task.step()
    finally:
        guard.allow()
