"""`HOOKS.ITERATION_TIMER`: how long a train step takes, and how much of that hooks take.

One line at the end of the run, and two metrics with each train phase. Time is counted from
event to event while a train phase runs, so reading data counts, test phases do not. The hooks'
share is what all hooks and services do in the phase's events: logging and checkpoints too.
"""

from __future__ import annotations

import logging
from time import perf_counter

from sslengine.hooks.events import Hook, TaskView
from sslengine.monitor.console import ConsoleWriter
from sslengine.monitor.text import clock

log = logging.getLogger("sslengine")

# The first steps of a process are slow (memory is allocated, kernels are chosen): not counted.
WARMUP_STEPS = 3


class IterationTimer(Hook):
    def __init__(self, warmup_steps: int = WARMUP_STEPS) -> None:
        self.warmup_left = warmup_steps
        self.steps = 0  # counted
        self.seconds = 0.0  # that they took, with what hooks did at the ends of phases
        self.in_hooks = 0.0  # of these
        # Of the last train step: when it ended, and what hooks had taken until then.
        self._mark: tuple[float, float] | None = None

    def on_phase_start(self, task: TaskView) -> None:
        self._count_end_of_phase(task)
        self._mark = (perf_counter(), task.perf.hooks.seconds) if task.train else None

    def on_step(self, task: TaskView) -> None:
        if self._mark is None:
            return
        (began, hooks), self._mark = self._mark, (perf_counter(), task.perf.hooks.seconds)
        self.seconds += self._mark[0] - began
        self.in_hooks += self._mark[1] - hooks
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
        self._count_end_of_phase(task)
        self._tell(task)

    def on_exception(self, task: TaskView) -> None:
        self._tell(task)

    def _count_end_of_phase(self, task: TaskView) -> None:
        if self._mark is not None and self.steps:
            taken = task.perf.hooks.seconds - self._mark[1]
            self.seconds += taken
            self.in_hooks += taken

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
