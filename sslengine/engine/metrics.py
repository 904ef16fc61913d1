"""The metrics of a run: read every LOG_FREQUENCY steps and at the end of each phase.

They are the losses, the speed, and what was put into `task.storage`.
"""

from __future__ import annotations

import logging
import math
import sys
import time
from collections import deque
from typing import Any

from sslengine import startup
from sslengine.distributed.ranks import is_primary
from sslengine.errors import NonFiniteLossError
from sslengine.hooks.events import Hook, Task
from sslengine.monitor.store import MAIN, LossEntry
from sslengine.monitor.writers import Record, close_all, hand_out
from sslengine.screen import say

log = logging.getLogger("sslengine")

Mark = tuple[float, int, int]  # time, train steps made, samples seen


class LogMetrics(Hook):
    """Write a line at the first step, at every LOG_FREQUENCY-th and at the last one of a phase.

    All ranks read, so that all find a loss that is not finite at the same step, and metrics
    of all ranks become one; rank 0 has writers and writes.
    """

    def __init__(self, frequency: int, rolling: int = -1) -> None:
        self.frequency = frequency
        # At the last reads: the speed is between two.
        self._marks: deque[Mark] = deque(
            maxlen=max(2, rolling // frequency + 1) if rolling > 0 else 2
        )
        self._warm = False  # has this process trained a step? The first may compile for minutes
        self._first = self._epochs = 1
        self._waited = (0.0, 0)  # seconds for the loader, steps of the phase: at the last read

    def on_start(self, task: Task) -> None:
        self._total_steps = sum(phase.own_steps for phase in task.phases if phase.train)
        self._epochs = 1 + max(int(phase.epoch) for phase in task.phases)

    def on_phase_start(self, task: Task) -> None:
        self._begin_measuring(task)
        self._waited = (task.data_seconds, task.progress.step)
        self._first = task.progress.step + 1  # that this process makes of the phase
        self.due = task.state.steps + 1 if task.train else math.inf

    def _begin_measuring(self, task: Task) -> None:
        self._marks.clear()
        self._marks.append(_mark(task))

    def on_step(self, task: Task) -> None:
        if not task.train:
            return
        made, steps = task.progress.step, task.progress.of
        if made in (1, steps) or task.progress.iteration % self.frequency == 0:
            self._write_line(task)
        if not self._warm:
            self._warm = True
            self._begin_measuring(task)
        if made == self._first:
            _tell_start_up()
        to_a_line = self.frequency - task.progress.iteration % self.frequency
        self.due = task.state.steps + min(to_a_line, max(1, steps - made))

    def on_phase_end(self, task: Task) -> None:
        task.storage.read()
        task.storage.take_losses()  # of this phase: they are of no step record of the next
        for name, value in task.storage.take_scalars().items():
            task.phase_results.setdefault(name, value)
        self._write(task, "phase", task.phase_results)

    def on_end(self, task: Task) -> None:
        """Write what was put at the end of the run, in a separate record."""
        self._write_last(task, "end")

    def on_exception(self, task: Task) -> None:
        """Write what was put since the last record and needs no answer of a device or a rank."""
        self._write_last(task, "exception")

    def _write_last(self, task: Task, kind: str) -> None:
        try:
            values = task.storage.take_last(failed=kind == "exception")
            if values:
                self._write(task, kind, values)
        finally:
            close_all(task.writers)

    def _write_line(self, task: Task) -> None:
        self._note_waiting(task)
        task.storage.read()
        entries, put = task.storage.take_losses(), task.storage.take_scalars()
        now = _mark(task)
        if self._warm:  # the first step says nothing of how long others will take
            self._marks.append(now)
        begin = self._marks[0]
        if not task.writers or not entries:
            return
        speed, step_seconds = _speed(begin, now)
        values = {**_losses(entries), **task.optimizer.learning_rates()}
        values["images_per_s"] = round(speed, 1)
        if len(entries) > 1:
            values["loss_mean"] = sum(e.parts[MAIN] for e in entries) / len(entries)
        left = step_seconds * (self._total_steps - task.iteration)
        display = {
            "step": task.progress.step,
            "steps": task.phase.whole or task.phase.steps,
            "epochs": self._epochs,
            "eta_seconds": left if self._warm else None,
        }
        pictures = task.storage.take_pictures()
        record = Record("step", *_place(task), values | put, display, *pictures)
        hand_out(record, task.writers)

    def _note_waiting(self, task: Task) -> None:
        """Put how long a step waited for its batch, on the rank that waited longest."""
        (seconds, steps), now = self._waited, (task.data_seconds, task.progress.step)
        self._waited = now
        mean = (now[0] - seconds) / max(1, now[1] - steps)
        task.storage.put_own("data_seconds", round(mean, 6), reduce="max", keep=False)

    def _write(self, task: Task, kind: str, values: dict[str, Any]) -> None:
        # Of a run that has failed pictures may have to be waited for.
        pictures = () if kind == "exception" else task.storage.take_pictures()
        record = Record(kind, *_place(task), values, {"epochs": self._epochs}, *pictures)
        if isinstance(task.exception, NonFiniteLossError):  # it may be found some steps later
            record = record._replace(iteration=task.exception.iteration or record.iteration)
        hand_out(record, task.writers)


def _mark(task: Task) -> Mark:
    return time.perf_counter(), task.iteration, task.progress.samples


def _speed(begin: Mark, end: Mark) -> tuple[float, float]:
    """Return (images per second, seconds per step) between two marks."""
    (t0, steps0, samples0), (t1, steps1, samples1) = begin, end
    seconds = max(t1 - t0, 1e-9)
    return (samples1 - samples0) / seconds, seconds / max(steps1 - steps0, 1)


def _losses(entries: list[LossEntry]) -> dict[str, Any]:
    """Return the losses of the last step by the names of metrics."""
    parts = entries[-1].parts
    named = {f"{MAIN}.{name}": value for name, value in parts.items() if name != MAIN}
    return {MAIN: parts[MAIN], **named}


def _tell_start_up() -> None:
    line = startup.finish()
    if line and is_primary():
        say(line, sys.stdout, flush=True)
        log.info("%s", line)


def _place(task: Task) -> tuple[int, int, str]:
    """Return iteration, epoch, split."""
    return task.iteration, task.phase.epoch, "train" if task.train else "test"
