"""The task's state, piece by piece. (A whole run that continues: tests/engines/test_train.py.)"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sslengine.config.facts import RunFacts
from sslengine.distributed.ranks import rank
from sslengine.errors import CheckpointError
from sslengine.hooks.events import OPTIONAL, Hook
from sslengine.methods.base import Method
from tests.data.pictures import write_picture
from tests.engine.runs import make_task
from tests.ranks import RankPool


class Counter(Hook):
    def __init__(self, count: int = 0) -> None:
        self.count = count

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = state["count"]


class QueueLoss(Method):
    """A loss with a queue of its own, and something that each rank has for itself."""

    def __init__(self, run: RunFacts, size: int = 3) -> None:
        super().__init__()
        self.register_buffer("queue", torch.zeros(size))
        self.mine = rank()

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        return output.sum()

    def rank_state(self) -> dict[str, Any]:
        return {"mine": self.mine}

    def load_rank_state(self, state: dict[str, Any]) -> None:
        self.mine = state["mine"]


QUEUE = {"LOSS": {"name": f"{__name__}:QueueLoss"}}


def test_hooks_losses_and_random_streams_go_round(tmp_path: Path) -> None:
    one = make_task(tmp_path, [Counter(7)], **QUEUE)
    one.loss.queue.copy_(torch.tensor([1.0, 2.0, 3.0]))
    one.loss.mine = 5
    state = one.get_classy_state(deep_copy=True)
    expected = (random.random(), np.random.rand(), torch.rand(1).item())  # noqa: NPY002
    one.loss.queue.zero_()
    counter = Counter()
    two = make_task(tmp_path, [counter], **QUEUE)
    two.set_classy_state(state)
    assert two.loss.queue.tolist() == [1.0, 2.0, 3.0]
    assert (two.loss.mine, counter.count) == (5, 7)
    assert (random.random(), np.random.rand(), torch.rand(1).item()) == expected  # noqa: NPY002


def test_another_queue_is_refused_by_name(tmp_path: Path) -> None:
    state = make_task(tmp_path, [], **QUEUE).get_classy_state()
    bigger = {"LOSS": {**QUEUE["LOSS"], "QueueLoss": {"size": 4}}}
    with pytest.raises(
        CheckpointError, match=r"the loss's state has other sizes: queue: \(3,\) -> \(4,\)"
    ):
        make_task(tmp_path, [], **bigger).set_classy_state(state)
    with pytest.raises(CheckpointError, match="the loss's state in the checkpoint.* here queue"):
        make_task(tmp_path, []).set_classy_state(state)


def test_another_set_of_hooks_is_refused_by_name(tmp_path: Path) -> None:
    state = make_task(tmp_path, [Counter()]).get_classy_state()
    with pytest.raises(CheckpointError, match=r"the hooks .* not known here Counter"):
        make_task(tmp_path, []).set_classy_state(state)


class Advice(Counter):
    def state_dict(self) -> dict[str, Any]:
        return {OPTIONAL: True, "count": self.count}


def test_hooks_whose_state_is_optional_may_come_and_go(tmp_path: Path) -> None:
    kept = make_task(tmp_path / "with", [Advice(3)]).get_classy_state(deep_copy=True)
    make_task(tmp_path / "none", []).set_classy_state(kept)
    again = Advice()
    make_task(tmp_path / "again", [again]).set_classy_state(kept)
    assert again.count == 3
    without = make_task(tmp_path / "without", []).get_classy_state(deep_copy=True)
    make_task(tmp_path / "new", [Advice()]).set_classy_state(without)


def _state_of_two(folder: Path) -> Any:
    task = make_task(folder, [], **QUEUE, DISTRIBUTED__NUM_PROC_PER_NODE=2,
                     DATA__TRAIN__BATCHSIZE_PER_REPLICA=2)  # fmt: skip
    state = task.get_classy_state(deep_copy=True)
    task.loss.mine = 99
    task.set_classy_state(state)
    return state, task.loss.mine


def test_each_rank_gets_its_own_part_back(two_ranks: RankPool, tmp_path: Path) -> None:
    (state, first), (_, second) = two_ranks.run(_state_of_two, tmp_path)
    assert (first, second) == (0, 1)
    assert [each["loss"] for each in state["ranks"]] == [{"mine": 0}, {"mine": 1}]


def test_a_loss_with_state_on_each_rank_needs_as_many_ranks(
    two_ranks: RankPool, tmp_path: Path
) -> None:
    state, _ = two_ranks.run(_state_of_two, tmp_path)[0]
    with pytest.raises(CheckpointError, match="a run of 2 ranks cannot continue with 1"):
        make_task(tmp_path, [], **QUEUE).set_classy_state(state)


def _plain_state_of_two(folder: Path) -> Any:
    task = make_task(folder, [], METERS__names=["accuracy_list_meter"],
                     DISTRIBUTED__NUM_PROC_PER_NODE=2, DATA__TRAIN__BATCHSIZE_PER_REPLICA=2)  # fmt: skip
    task.meters[0].update(torch.eye(3), torch.tensor([0, 1, rank()]))
    return task.get_classy_state(deep_copy=True)


def test_another_number_of_ranks_with_the_same_batches_goes_on(
    two_ranks: RankPool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    state = two_ranks.run(_plain_state_of_two, tmp_path)[0]
    task = make_task(tmp_path, [], METERS__names=["accuracy_list_meter"])
    task.set_classy_state(state)
    assert "the checkpoint is of 2 ranks and this run has 1" in caplog.text
    # 2 of 3 right on both ranks: what they had counted is not lost.
    assert task.meters[0].value()["top_1"]["0"] == pytest.approx(100 * 4 / 6)


def test_another_batch_size_is_refused_where_an_epoch_has_as_many_steps(tmp_path: Path) -> None:
    """Steps are counted in batches: images would be trained on twice, and others never."""
    state = make_task(tmp_path, [], DATA__TRAIN__DATA_LIMIT=11).get_classy_state()
    changes = {"DATA__TRAIN__DATA_LIMIT": 11, "DATA__TRAIN__BATCHSIZE_PER_REPLICA": 5}
    with pytest.raises(CheckpointError, match="in images of a step: 4 -> 5"):
        make_task(tmp_path, [], **changes).set_classy_state(state)


@pytest.mark.parametrize("changed", ["", "names", "labels"])
def test_images_that_were_exchanged_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, changed: str
) -> None:
    folder = tmp_path / "images"
    for number in range(12):
        write_picture(folder / "ab"[number % 2] / f"{number:02}.png", number)
    split = {
        "DATA__TRAIN__DATA_SOURCES": ["disk_folder"],
        "DATA__TRAIN__LABEL_SOURCES": ["disk_folder"],
        "DATA__TRAIN__DATA_LIMIT": -1,
    }
    state = make_task(
        tmp_path, [], **split, DATA__TRAIN__DATA_PATHS=[str(folder)]
    ).get_classy_state()
    moved = folder.rename(tmp_path / "moved")  # that changes nothing
    if changed == "names":
        (moved / "a" / "00.png").rename(moved / "a" / "99.png")
    if changed == "labels":
        (moved / "a" / "10.png").rename(moved / "b" / "10.png")
    task = make_task(tmp_path, [], **split, DATA__TRAIN__DATA_PATHS=[str(moved)])
    task.set_classy_state(state)
    assert ("names" in caplog.text) == bool(changed)
    assert ("names and labels: other images" in caplog.text) == (changed == "labels")
