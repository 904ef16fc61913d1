"""Through real runs, on a clock of the test's own."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sslengine.distributed.ranks import rank
from sslengine.engine import loop, metrics
from sslengine.errors import NonFiniteLossError
from sslengine.hooks import timing
from sslengine.hooks.events import Hook
from sslengine.monitor.writers import Record, Writer
from tests.engine.tasks import ListModel, at, make, make_batch
from tests.ranks import RankPool


class _Keep(Writer):
    def __init__(self) -> None:
        self.records: list[Record] = []
        self.closed = False

    def write(self, record: Record) -> None:
        self.records.append(record)

    def close(self) -> None:
        self.closed = True

    def of(self, kind: str) -> list[Record]:
        return [record for record in self.records if record.kind == kind]


class Counting(nn.Module):
    """The loss of a train step is its number, from 0; of a test step, 100."""

    made = 0

    def forward(self, output: Tensor, target: Tensor) -> dict[str, Tensor]:
        number = self.made if self.training else 100
        self.made += self.training
        return {"loss": output.sum() * 0 + number, "extra": torch.tensor(7.0)}


class Clock:
    """It stands still but where a run is made to take time."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        patch.setattr(metrics.time, "perf_counter", lambda: self.now)
        patch.setattr(timing, "perf_counter", lambda: self.now)
        patch.setattr("sslengine.engine.state.perf_counter", lambda: self.now)

    def passes(self, seconds: float, step: int | None = None) -> Hook:
        """In each step's forward, or in that of one step."""

        def wait(task: Any) -> None:
            self.now += seconds if step in (None, task.iteration) else 0.0

        return at("on_forward", wait)

    def waits(self, task: Any, seconds: float) -> None:
        """For each batch."""
        batches = task.train_feed.batches

        def slowly(*window: int) -> Iterator[Any]:
            for batch in batches(*window):
                self.now += seconds
                yield batch

        task.train_feed.batches = slowly


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def _make(
    steps: int, *hooks: Hook, tests: int = 0, epochs: int = 1, loss: Any = None, **changes: Any
) -> Any:
    """Phases of so many steps of 4 images; with `tests`, test phases of so many."""
    model = ListModel()
    return make(
        [make_batch()] * steps, model, loss or Counting(), *hooks,
        validation=[make_batch()] * tests if tests else None,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.5),
        OPTIMIZER__num_epochs=epochs, **changes,
    )  # fmt: skip


def _written(task: Any) -> _Keep:
    writer = _Keep()
    task.writers.append(writer)
    loop.run(task)
    assert writer.closed
    return writer


def test_the_first_step_and_every_nth_are_written(clock: Clock) -> None:
    compiles = clock.passes(100.0, step=0)  # which says nothing of the speed of other steps
    task = _make(10, clock.passes(0.25), compiles, LOG_FREQUENCY=4)
    clock.waits(task, 0.25)
    steps = _written(task).of("step")
    assert [record.iteration for record in steps] == [1, 4, 8, 10]
    assert [record.values["loss"] for record in steps] == [0.0, 3.0, 7.0, 9.0]
    assert steps[1].values == {
        "loss": 3.0,
        "loss.extra": 7.0,
        "lr": 0.5,
        "images_per_s": 8.0,
        "loss_mean": 2.0,
        "data_seconds": 0.25,
        "grad_norm": 0.0,
    }
    assert steps[0].display["eta_seconds"] is None
    assert steps[1].display == {"step": 4, "steps": 10, "epochs": 1, "eta_seconds": 3.0}


def test_a_rolling_speed_looks_further_back(clock: Clock) -> None:
    task = _make(3, clock.passes(0.5), clock.passes(3.5, step=2), LOG_FREQUENCY=1,
                 HOOKS__PERF_STATS__ROLLING_BTIME_FREQ=3)  # fmt: skip
    assert _written(task).of("step")[-1].values["images_per_s"] == pytest.approx(8 / 4.5, abs=0.05)


def test_a_phase_ends_with_its_results() -> None:
    end = at("on_phase_end", lambda task: task.phase_results.update(mine=50.0))
    train, test = _written(_make(3, end, tests=2)).of("phase")
    assert (train.split, train.values) == ("train", {"loss": 1.0, "mine": 50.0})
    assert (test.split, test.values) == ("test", {"loss": 100.0, "mine": 50.0})


def test_what_was_put_is_written_with_the_steps() -> None:
    def put(task: Any) -> None:
        task.storage.put_scalar("tau", torch.tensor([1.0, 5.0, 3.0][task.iteration]))
        task.storage.put_image("view", torch.zeros(2, 2))
        task.storage.put_histogram("weights", torch.ones(3))

    writer = _written(_make(3, at("on_forward", put), LOG_FREQUENCY=2))
    steps, (phase,) = writer.of("step"), writer.of("phase")
    assert [record.values["tau"] for record in steps] == [1.0, 3.0, 3.0]
    assert all(record.images.keys() == {"view"} for record in steps)
    assert all(record.histograms.keys() == {"weights"} for record in steps)
    assert "tau" not in phase.values
    assert not phase.images


def test_a_test_phases_metrics_are_in_its_results() -> None:
    values = iter([1.0, 4.0, 4.0])

    def put(task: Any) -> None:
        if not task.train:
            task.storage.put_scalar("tau", next(values))

    train, test = _written(_make(2, at("on_forward", put), tests=3)).of("phase")
    assert test.values == {"loss": 100.0, "tau": 3.0}
    assert "tau" not in train.values


def test_a_test_phases_losses_are_in_no_mean_of_train_steps() -> None:
    steps = _written(_make(4, tests=2, epochs=2, LOG_FREQUENCY=4)).of("step")
    means = {record.iteration: record.values.get("loss_mean") for record in steps}
    assert means == {1: None, 4: 2.0, 5: None, 8: 6.0}


class Bad(Counting):
    """The loss of step 2 is not a number."""

    def forward(self, output: Tensor, target: Tensor) -> dict[str, Tensor]:
        losses = super().forward(output, target)
        return {**losses, "loss": losses["loss"] * (math.nan if self.made == 3 else 1.0)}


def test_a_loss_that_is_not_finite_is_found_before_its_line_and_any_save() -> None:
    for frequency, lines in ((1, [1, 2]), (9, [1])):
        writer, task = _Keep(), _make(5, loss=Bad(), LOG_FREQUENCY=frequency)
        task.writers.append(writer)
        task.on_start()
        task.start_phase()
        task.on_phase_start()
        for _ in range(2):
            task.step()
        with pytest.raises(NonFiniteLossError, match="iteration 3 is not finite"):  # noqa: PT012
            task.step()
            task.get_classy_state()
        task.close()
        assert [record.iteration for record in writer.records] == lines


def _waiting() -> list[float]:
    """Rank 1 waits for its data."""
    with pytest.MonkeyPatch.context() as patch:
        clock, task = Clock(patch), _make(4, LOG_FREQUENCY=2, DISTRIBUTED__NUM_PROC_PER_NODE=2)
        clock.waits(task, 0.125 + rank())
        return [record.values["data_seconds"] for record in _written(task).of("step")]


def test_the_longest_wait_of_all_ranks_is_reported(two_ranks: RankPool) -> None:
    assert two_ranks.run(_waiting) == [[1.125] * 3] * 2
