"""`HOOKS.ITERATION_TIMER`: how long a train step takes, and how much of that hooks take.

One line at the end of the run, and two figures with each train phase. Time is counted from
event to event while a train phase runs, so reading data counts, test phases do not. Hooks'
share is what all hooks do in the phase's events: logging, checkpoints, the method's own.
"""

from __future__ import annotations

import logging
from functools import partial
from time import perf_counter
from typing import Any

from sslengine.hooks.events import Calls, Hook, TaskView
from sslengine.monitor.console import ConsoleWriter
from sslengine.monitor.text import clock

log = logging.getLogger("sslengine")

# The first steps of a process are slow (memory is allocated, kernels are chosen): not counted.
WARMUP_STEPS = 3
NOT_TIMED = ("on_start", "on_end", "on_exception")


class IterationTimer(Hook):
    """It stands around the events of all hooks; a run without it has no such thing around them."""

    def __init__(self, warmup_steps: int = WARMUP_STEPS) -> None:
        self.warmup_left = warmup_steps
        self.steps = 0  # counted
        self.seconds = 0.0  # that they took, with what hooks did at the ends of phases
        self.in_hooks = 0.0  # of these
        self._mark = 0.0

    def around_events(self, calls: Calls) -> Calls:
        """The calls of an event as one, with a look at the clock before and after."""
        timed = {event: each for event, each in calls.items() if event not in NOT_TIMED}
        return calls | {
            event: (partial(self._timed, event, each),)
            for event, each in timed.items()
            if each or event in ("on_phase_start", "on_step")
        }

    def _timed(self, event: str, calls: tuple[Any, ...], task: TaskView) -> None:
        begin = perf_counter()
        for call in calls:
            call(task)
        end = perf_counter()
        if not task.train:
            return
        if event == "on_phase_start":
            self._mark = begin
        self.in_hooks += end - begin
        self.seconds += end - self._mark
        self._mark = end
        if event == "on_step":
            self._count_step()

    def _count_step(self) -> None:
        if self.warmup_left:
            self.warmup_left -= 1
            self.seconds = self.in_hooks = 0.0
        else:
            self.steps += 1

    def on_phase_end(self, task: TaskView) -> None:
        if task.train and self.steps:
            task.phase_results["seconds_per_step"] = self.seconds / self.steps
            task.phase_results["percent_in_hooks"] = 100 * self.in_hooks / self.seconds

    def on_end(self, task: TaskView) -> None:
        self._tell(task)

    def on_exception(self, task: TaskView) -> None:
        self._tell(task)

    def _tell(self, task: TaskView) -> None:
        if not self.steps:
            return
        line = str(self)
        log.info("%s", line)
        for writer in task.writers:
            if isinstance(writer, ConsoleWriter):
                writer.console.print(line)

    def __str__(self) -> str:
        return (
            f"{self.steps} steps in {clock(self.seconds)}, {self.seconds / self.steps:.4g} s each; "
            f"{100 * self.in_hooks / self.seconds:.1f} % in hooks"
        )
