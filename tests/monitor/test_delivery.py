"""A writer that fails in the middle of a run: training continues, the others get all records."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import pytest

from sslengine.engine import loop
from sslengine.engine.task import SelfSupervisionTask
from sslengine.errors import TrainingError
from sslengine.hooks.default import default_hooks
from sslengine.monitor.writers import Record, Writer
from tests.config.recipes import resolved
from tests.engine.runs import CPU, same, train, weights

STEPS = [1, 2, 3, 4, 5, 6, 7, 8]


class Tracker(Writer):
    """Its server is away at some steps."""

    def __init__(self, away: Sequence[int] = (), error: type[Exception] = ConnectionError) -> None:
        self.away, self.error = away, error
        self.steps: list[int] = []
        self.closed = False

    def write(self, record: Record) -> None:
        if record.iteration in self.away:
            raise self.error("the server is away")
        if record.kind == "step":
            self.steps.append(record.iteration)

    def close(self) -> None:
        self.closed = True
        if self.away:
            raise self.error("the server is away")


def run(folder: Path, *writers: Writer) -> SelfSupervisionTask:
    config = resolved(LOG_FREQUENCY=1).config
    hooks = default_hooks(config, folder)
    task = SelfSupervisionTask(config, folder, CPU, writers=list(writers), hooks=hooks)
    task.prepare()
    loop.run(task)
    return task


def test_it_ends_no_run_and_keeps_no_record_from_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tracker, other = Tracker([3, 4, 6]), Tracker()
    with caplog.at_level(logging.ERROR, "sslengine"):
        task = run(tmp_path / "run", tracker, other)
    assert same(weights(task), weights(train(tmp_path / "elsewhere", [])))
    assert (tracker.steps, other.steps) == ([1, 2, 5, 7, 8], STEPS)
    said = "The writer Tracker failed: ConnectionError: the server is away. Training continues"
    assert caplog.text.count(said) == 2  # at 3 and at 6
    assert "The writer Tracker could not be closed: ConnectionError" in caplog.text
    assert other.closed


def test_at_its_first_record_it_ends_the_run(tmp_path: Path) -> None:
    other = Tracker()
    with pytest.raises(KeyError, match="the server is away"):
        run(tmp_path, Tracker([1], KeyError), other)
    assert other.closed


def test_an_error_of_the_engine_ends_the_run(tmp_path: Path) -> None:
    """A writer may stop it."""
    with pytest.raises(TrainingError, match="the server is away"):
        run(tmp_path, Tracker([3], TrainingError))
