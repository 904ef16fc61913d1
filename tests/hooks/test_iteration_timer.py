from __future__ import annotations

import io
import logging
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from sslengine.hooks import iteration_timer
from sslengine.hooks.events import Hook
from sslengine.hooks.iteration_timer import IterationTimer
from sslengine.monitor import perf
from sslengine.monitor.console import ConsoleWriter
from sslengine.trainer import loop
from tests.task.runs import Stop, Watch, make_task
from tests.task.test_task import SUPERVISED, WITH_TEST


class Clock:
    """Time that passes only when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class TakesTime(Hook):
    """Steps and hooks of known length."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def on_step_start(self, task: Any) -> None:
        self.clock.now += 0.25  # a hook

    def on_phase_end(self, task: Any) -> None:
        self.clock.now += 1.0  # a hook, once a phase


def _run(
    folder: Path, clock: Clock, timer: IterationTimer, hooks: list[Any], **changes: Any
) -> str:
    task = make_task(
        folder, [timer, TakesTime(clock), *hooks], HOOKS__ITERATION_TIMER=True, **changes
    )
    made = task.parts.train_step_function

    def slow(task: Any) -> Any:
        # The first steps take long; a test step longer than any.
        clock.now += (10.0 if task.iteration < 2 else 2.0) if task.train else 1000.0
        return made(task)

    task.parts = replace(task.parts, train_step_function=slow)
    console = Console(file=io.StringIO(), width=200)
    task.writers.append(ConsoleWriter(console))
    try:
        loop.run(task)
    finally:
        task.close()
        text = console.file.getvalue()  # type: ignore[attr-defined]
    return str(text)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(iteration_timer, "perf_counter", clock)
    monkeypatch.setattr(perf, "perf_counter", clock)
    return clock


def test_steps_and_the_share_of_hooks(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "sslengine")
    timer = IterationTimer(warmup_steps=2)
    screen = _run(tmp_path, clock, timer, [], **SUPERVISED, **WITH_TEST)
    # 8 steps in two phases, of which 2 are not counted: 6 of 2 s and 0.25 s of a hook each,
    # and a hook at the end of both train phases. Test phases do not count.
    assert timer.steps == 6
    assert timer.seconds == pytest.approx(6 * 2.25 + 2 * 1.0)
    assert timer.in_hooks == pytest.approx(6 * 0.25 + 2 * 1.0)
    line = "6 steps in 0:00:16, 2.583 s each; 22.6 % in hooks"
    assert line in caplog.text
    assert line in screen


def test_the_figures_are_logged_with_each_train_phase(tmp_path: Path, clock: Clock) -> None:
    class Read(Hook):
        seen: list[dict[str, Any]] = []

        def on_phase_end(self, task: Any) -> None:
            self.seen.append(dict(task.phase_results))

    _run(tmp_path, clock, IterationTimer(warmup_steps=2), [Read()])
    assert Read.seen[0]["seconds_per_step"] == pytest.approx(2.25)
    assert Read.seen[0]["percent_in_hooks"] == pytest.approx(100 * 0.25 / 2.25)


def test_it_is_told_when_a_step_raises_too(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "sslengine")
    with pytest.raises(Stop):
        _run(tmp_path, clock, IterationTimer(warmup_steps=2), [Watch(stop_after=4)])
    assert "2 steps in" in caplog.text


def test_without_it_events_are_called_as_they_are(tmp_path: Path) -> None:
    watch = Watch()
    assert make_task(tmp_path, [watch]).state.calls["on_step"] == (watch.on_step,)
    assert time.perf_counter is iteration_timer.perf_counter
