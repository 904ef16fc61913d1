"""`HOOKS.ITERATION_TIMER`: the time of a train step, and the share of it spent in hooks.

It prints one line at the end of the run and adds two metrics to each train phase. The time
includes reading data, and not test phases. The hooks' share is the time of all hooks and
services, with logging and checkpoints.
"""

from __future__ import annotations

import logging
from time import perf_counter

from sslengine.hooks.events import Hook, TaskView
from sslengine.monitor.console import ConsoleWriter
from sslengine.monitor.text import clock

log = logging.getLogger("sslengine")

# Not counted: the first steps of a process are slow (it allocates memory and chooses kernels).
WARMUP_STEPS = 3


class IterationTimer(Hook):
    def __init__(self, warmup_steps: int = WARMUP_STEPS) -> None:
        self.warmup_left = warmup_steps
        self.steps = 0  # counted
        self.seconds = 0.0  # of these steps, and of the hooks at the ends of phases
        self.in_hooks = 0.0  # the part of `seconds` spent in hooks
        # When the last train step ended, and the time spent in hooks until then.
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
        self._report(task)

    def on_exception(self, task: TaskView) -> None:
        self._report(task)

    def _count_end_of_phase(self, task: TaskView) -> None:
        if self._mark is not None and self.steps:
            taken = task.perf.hooks.seconds - self._mark[1]
            self.seconds += taken
            self.in_hooks += taken

    def _report(self, task: TaskView) -> None:
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
