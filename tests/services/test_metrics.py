from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sslengine.distributed.ranks import rank
from sslengine.monitor.store import MetricStore
from sslengine.monitor.writers import Record, Writer
from sslengine.services import metrics
from sslengine.services.metrics import LogMetrics
from sslengine.task.phases import Phase
from tests.ranks import RankPool


class _Keep(Writer):
    def __init__(self) -> None:
        self.records: list[Record] = []
        self.closed = False

    def write(self, record: Record) -> None:
        self.records.append(record)

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(metrics.time, "perf_counter", lambda: now[0])
    return now


def _task(writers: list[Writer]) -> Any:
    storage = MetricStore()
    train, test = Phase(0, True, 0, 0, 0, 10), Phase(1, False, 0, 0, 0, 2)
    return SimpleNamespace(
        train=True,
        iteration=0,
        progress=SimpleNamespace(step=0, samples=0),
        ledger=storage.losses,
        storage=storage,
        data_seconds=0.0,
        writers=writers,
        phase=train,
        phases=[train, test],
        phase_results={},
        optimizer=SimpleNamespace(learning_rates=lambda: {"lr": 0.5}),
    )


def _run(task: Any, hook: LogMetrics, steps: int, clock: list[float]) -> None:
    for _ in range(steps):
        parts = {"loss": torch.tensor(float(task.iteration)), "extra": torch.tensor(7.0)}
        task.ledger.record(parts, task.iteration, batch_size=4)
        task.iteration += 1
        task.progress.step += 1
        task.progress.samples += 4
        task.data_seconds += 0.25
        clock[0] += 0.5
        hook.on_step(task)


def test_the_first_step_and_every_nth_are_written(clock: list[float]) -> None:
    writer = _Keep()
    task, hook = _task([writer]), LogMetrics(frequency=4)
    hook.on_start(task)
    hook.on_phase_start(task)
    _run(task, hook, 10, clock)
    hook.on_phase_end(task)
    steps = [record for record in writer.records if record.kind == "step"]
    assert [record.iteration for record in steps] == [1, 4, 8, 10]
    assert [record.values["loss"] for record in steps] == [0.0, 3.0, 7.0, 9.0]
    assert steps[1].values == {
        "loss": 3.0,
        "loss.extra": 7.0,
        "lr": 0.5,
        "images_per_s": 8.0,
        "loss_mean": 2.0,
        "data_seconds": 0.25,
    }
    assert steps[1].display == {"step": 4, "steps": 10, "epochs": 1, "eta_seconds": 3.0}


def test_a_rolling_speed_looks_further_back(clock: list[float]) -> None:
    writer = _Keep()
    task, hook = _task([writer]), LogMetrics(frequency=1, rolling=3)
    hook.on_start(task)
    hook.on_phase_start(task)
    _run(task, hook, 2, clock)
    clock[0] += 3.5  # one slow step: 4 s
    _run(task, hook, 1, clock)
    assert writer.records[-1].values["images_per_s"] == pytest.approx(12 / 5, abs=0.05)


def test_a_phase_ends_with_its_results(clock: list[float]) -> None:
    writer = _Keep()
    task, hook = _task([writer]), LogMetrics(frequency=4)
    task.train, task.phase = False, task.phases[1]
    task.phase_results = {"loss": 1.0, "acc": {"top_1": {"0": 50.0}}}
    hook.on_start(task)
    hook.on_phase_start(task)
    hook.on_step(task)
    hook.on_phase_end(task)
    (record,) = writer.records
    assert (record.kind, record.split, record.values) == ("phase", "test", task.phase_results)


def test_a_rank_without_writers_reads_as_often(clock: list[float]) -> None:
    task, hook = _task([]), LogMetrics(frequency=2)
    hook.on_start(task)
    hook.on_phase_start(task)
    _run(task, hook, 3, clock)
    # A loss that is not finite stops every rank at the same step: all read after step 2.
    assert [entry.iteration for entry in task.ledger.drain()] == [2]


@pytest.mark.parametrize("event", ["on_end", "on_exception"])
def test_writers_are_closed_however_it_ends(event: str) -> None:
    writer = _Keep()
    getattr(LogMetrics(1), event)(_task([writer]))
    assert writer.closed


def test_what_was_put_is_written_with_the_steps(clock: list[float]) -> None:
    writer = _Keep()
    task, hook = _task([writer]), LogMetrics(frequency=2)
    task.phase = task.phases[0] = Phase(0, True, 0, 0, 0, 3)
    hook.on_start(task)
    hook.on_phase_start(task)
    for value in (1.0, 5.0, 3.0):
        task.storage.put_scalar("tau", torch.tensor(value))
        task.storage.put_image("view", torch.zeros(2, 2))
        task.storage.put_histogram("weights", torch.ones(3))
        _run(task, hook, 1, clock)
    hook.on_phase_end(task)
    steps, (phase,) = writer.records[:-1], writer.records[-1:]
    assert [record.values["tau"] for record in steps] == [1.0, 3.0, 3.0]
    assert all(record.images.keys() == {"view"} for record in steps)
    assert all(record.histograms.keys() == {"weights"} for record in steps)
    assert "tau" not in phase.values
    assert not phase.images


def test_a_test_phases_figures_are_in_its_results(clock: list[float]) -> None:
    writer = _Keep()
    task, hook = _task([writer]), LogMetrics(frequency=4)
    task.train, task.phase = False, task.phases[1]
    task.storage.start_phase("test", anew=True)
    hook.on_start(task)
    hook.on_phase_start(task)
    for value in (1.0, 4.0, 4.0):
        task.storage.put_scalar("tau", value)
    task.phase_results = {"loss": 1.0}
    hook.on_phase_end(task)
    assert writer.records[0].values == {"tau": 3.0, "loss": 1.0}


def test_a_test_phases_losses_are_in_no_mean_of_train_steps(clock: list[float]) -> None:
    writer = _Keep()
    task, hook = _task([writer]), LogMetrics(frequency=4)
    hook.on_start(task)
    task.train, task.phase = False, task.phases[1]
    hook.on_phase_start(task)
    task.ledger.record(torch.tensor(100.0), 0, batch_size=4)
    hook.on_phase_end(task)
    task.train, task.phase = True, task.phases[0]
    hook.on_phase_start(task)
    _run(task, hook, 4, clock)
    means = [r.values.get("loss_mean") for r in writer.records if r.kind == "step"]
    assert means == [None, 2.0]  # of step 0 alone; of steps 1, 2, 3


def _waiting() -> list[float]:
    """Rank 1 waits for its data; the last phase's waiting is not of this one."""
    writer = _Keep()
    task, hook = _task([writer]), LogMetrics(frequency=2)
    task.data_seconds = 100.0
    hook.on_start(task)
    hook.on_phase_start(task)
    for _ in range(4):
        task.ledger.record(torch.tensor(1.0), task.iteration, batch_size=4)
        task.iteration += 1
        task.progress.step += 1
        task.data_seconds += 0.125 + rank()
        hook.on_step(task)
    return [record.values["data_seconds"] for record in writer.records]


def test_the_longest_wait_of_all_ranks_is_told(two_ranks: RankPool) -> None:
    assert two_ranks.run(_waiting) == [[1.125] * 3] * 2
