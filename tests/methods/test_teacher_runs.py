"""What every method with a slow copy of the model, or a queue, must pass in a run."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from sslengine.distributed.ranks import rank, world_size
from sslengine.engine import loop
from sslengine.engine.task import SelfSupervisionTask
from sslengine.hooks.events import Hook
from sslengine.models.view_trunk import parameters_with_trunk
from tests.engine.runs import make_task, same, train
from tests.engine.test_task import NoWaiting
from tests.methods.test_byol import RECIPE as BYOL
from tests.methods.test_dino import RESNET as DINO
from tests.methods.test_moco import RECIPE as MOCO
from tests.methods.test_msn import of_run
from tests.methods.test_swav import RUN as SWAV
from tests.ranks import RankPool


class Case(NamedTuple):
    changes: dict[str, Any]
    copy: str = "teacher"
    momentum: str = "cosine"


CASES = {
    "byol": Case({**BYOL, "LOSS__byol_loss": {"momentum": 0.9}}),
    "dino": Case(DINO, "momentum_teacher"),
    "moco": Case(MOCO, "key_encoder", "constant"),
    "msn": Case(of_run(momentum=0.9, momentum_end=1.0), momentum="line"),
}
TWICE = {"OPTIMIZER__accumulate": 2}


def momentum(form: str, k: int, updates: int) -> float:
    """Return that of update k, from 0: it begins at 0.9 and rises to 1, if it does."""
    if form == "constant":
        return 0.9
    if form == "line":
        return 0.9 + 0.1 * k / updates
    return 1 - (1 - 0.9) * (math.cos(math.pi * k / updates) + 1) / 2


def followed(task: Any) -> list[Tensor]:
    """The parameters that the copy follows."""
    return [*parameters_with_trunk(getattr(task.loss, "student", task.base_model))]


class Trail(Hook):
    """Where the network has been: its parameters at the start and after each update."""

    def __init__(self) -> None:
        self.points: list[list[Tensor]] = []

    def on_start(self, task: Any) -> None:
        self.points.append([each.detach().double() for each in followed(task)])

    on_update = on_start


@pytest.mark.parametrize("accumulated", [False, True])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_copy_follows_as_in_the_paper(case: Case, accumulated: bool, tmp_path: Path) -> None:
    trail = Trail()
    task = train(tmp_path, [trail], **{**case.changes, **(TWICE if accumulated else {})})
    expected, *rest = trail.points
    for k, student in enumerate(rest):
        m = momentum(case.momentum, k, len(rest))
        expected = [m * t + (1 - m) * s for t, s in zip(expected, student, strict=True)]
    teacher = [each.double() for each in getattr(task.loss, case.copy).parameters()]
    far = 0.0
    for got, there, student in zip(teacher, expected, rest[-1], strict=True):
        torch.testing.assert_close(got, there, rtol=1e-5, atol=1e-6)
        far = max(far, (got - student).abs().max().item())
    assert far > 1e-3  # it follows, it is not the model


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_initial_weights_reach_the_copy(case: Case, tmp_path: Path) -> None:
    """It shares nothing with the model."""
    task = make_task(tmp_path, [], **case.changes)
    with torch.no_grad():
        for each in task.base_model.parameters():
            each.add_(1.0)
    teacher = getattr(task.loss, case.copy).module
    assert not all(map(torch.equal, teacher.parameters(), followed(task)))
    task.load_initial_weights()
    teacher = getattr(task.loss, case.copy).module
    mine, theirs = [*teacher.parameters()], followed(task)
    assert all(torch.equal(*pair) for pair in zip(mine, theirs, strict=True))
    assert not {each.data_ptr() for each in mine} & {each.data_ptr() for each in theirs}
    for own, each in zip(teacher.buffers(), task.base_model.buffers(), strict=False):
        assert torch.equal(own, each)
    assert not any(each.requires_grad for each in teacher.parameters())


SYNC_BN = {"MODEL__SYNC_BN_CONFIG__CONVERT_BN_TO_SYNC_BN": True}
LENGTH = {
    "OPTIMIZER__num_epochs": None, "OPTIMIZER__num_iterations": 20,
    "DATA__TRAIN__BATCHSIZE_PER_REPLICA": 2, "LOG_FREQUENCY": 1000,
}  # fmt: skip


@pytest.mark.parametrize(
    ("pool", "changes"),
    [
        pytest.param(2, DINO, id="dino"),
        pytest.param(2, MOCO, id="moco"),
        pytest.param(4, MOCO, id="moco at four", marks=pytest.mark.slow),
        pytest.param(2, {**DINO, **SYNC_BN}, id="synchronised", marks=pytest.mark.slow),
    ],
    indirect=["pool"],
)
def test_buffers_are_the_same_on_ranks(
    pool: RankPool, changes: dict[str, Any], tmp_path: Path
) -> None:
    """After 20 steps, without SyncBN, without a host that waits: every buffer of the method."""
    ranks = {"DISTRIBUTED__NUM_PROC_PER_NODE": pool.world_size}
    first, *others = pool.run(_state_after, tmp_path, {**changes, **LENGTH, **ranks})
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


@pytest.mark.parametrize("changes", [BYOL, DINO, MOCO, SWAV], ids=["byol", "dino", "moco", "swav"])
def test_steps_on_ranks_do_not_wait(
    changes: dict[str, Any], two_ranks: RankPool, tmp_path: Path
) -> None:
    """Three train steps in which the host never asks the device for a value."""
    two_ranks.run(_three_steps_on_rank, tmp_path, changes)


def _three_steps_on_rank(folder: Path, changes: dict[str, Any]) -> None:
    few = {"DATA__TRAIN__BATCHSIZE_PER_REPLICA": 2, "LOG_FREQUENCY": 1000}
    ranks = {"DISTRIBUTED__NUM_PROC_PER_NODE": world_size()}
    task = make_task(folder / str(rank()), [], **{**changes, **few, **ranks})
    _three_steps(task)
    assert task.iteration == 3
    task.close()


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
