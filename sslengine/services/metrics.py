"""The metrics of a run: read every LOG_FREQUENCY steps and at the end of each phase.

They are the losses, the speed, and what was put into `task.storage`.
"""

from __future__ import annotations

import logging
import sys
import time
from collections import deque
from typing import Any

from sslengine import startup
from sslengine.distributed.ranks import is_primary
from sslengine.hooks.events import Hook, TaskView
from sslengine.monitor.loss_ledger import MAIN, LossEntry
from sslengine.monitor.writers import Record
from sslengine.screen import columns, wrapped

log = logging.getLogger("sslengine")


class LogMetrics(Hook):
    """Reading the losses is the one moment in which the host waits for the device.

    All ranks read, so that all find a loss that is not finite at the same step, and metrics
    of all ranks become one; rank 0 has writers and writes.
    """

    def __init__(self, frequency: int, rolling: int = -1) -> None:
        self.frequency = frequency
        # (time, train steps made, samples seen) at the last reads: the speed is between two.
        self._marks: deque[tuple[float, int, int]] = deque(
            maxlen=max(2, rolling // frequency + 1) if rolling > 0 else 2
        )
        self._first = self._epochs = 1
        self._waited = (0.0, 0)  # seconds for the loader, steps of the phase: at the last read

    def on_start(self, task: TaskView) -> None:
        self._total_steps = sum(phase.own_steps for phase in task.phases if phase.train)
        self._epochs = 1 + max(int(phase.epoch) for phase in task.phases)

    def on_phase_start(self, task: TaskView) -> None:
        self._marks.clear()
        self._mark(task)
        self._waited = (task.data_seconds, task.progress.step)
        self._first = task.progress.step + 1  # that this process makes of the phase

    def on_step(self, task: TaskView) -> None:
        if not task.train:
            return
        made = task.progress.step
        # The last of a phase too: what hooks put at the phase's end belongs to the phase's record.
        if made in (1, task.phase.steps) or task.iteration % self.frequency == 0:
            self._write_steps(task)
        if made == self._first:
            _tell_start_up()

    def on_phase_end(self, task: TaskView) -> None:
        task.storage.read()
        task.ledger.drain()  # a test phase's are of no step record, nor of the next train phase's
        for name, value in task.storage.take_scalars().items():
            task.phase_results.setdefault(name, value)
        self._write(task, "phase", task.phase_results, {"epochs": self._epochs})

    def on_end(self, task: TaskView) -> None:
        """What was put at the run's end has a record of its own, if there is any."""
        self._write_last(task, "end", task.storage.take_at_end())

    def on_exception(self, task: TaskView) -> None:
        """What was put since the last record, as far as no device and no rank is waited for."""
        self._write_last(task, "exception", task.storage.take_without_waiting())

    def _write_last(self, task: TaskView, kind: str, values: dict[str, Any]) -> None:
        try:
            if values:
                self._write(task, kind, values, {"epochs": self._epochs})
        finally:
            for writer in task.writers:
                writer.close()

    def _write_steps(self, task: TaskView) -> None:
        self._note_waiting(task)
        task.storage.read()
        entries, put = task.ledger.drain(), task.storage.take_scalars()
        self._mark(task)
        if not (entries and task.writers):
            return
        speed, step_seconds = self._speed()
        values = {**_losses(entries), **task.optimizer.learning_rates()}
        values["images_per_s"] = round(speed, 1)
        if len(entries) > 1:
            values["loss_mean"] = sum(e.parts[MAIN] for e in entries) / len(entries)
        values |= put
        display = {
            "step": task.progress.step,
            "steps": task.phase.whole or task.phase.steps,
            "epochs": self._epochs,
            "eta_seconds": step_seconds * (self._total_steps - task.iteration),
        }
        self._write(task, "step", values, display)

    def _note_waiting(self, task: TaskView) -> None:
        """How long a step waited for its batch, on the rank that waited longest."""
        (seconds, steps), now = self._waited, (task.data_seconds, task.progress.step)
        self._waited = now
        mean = (now[0] - seconds) / max(1, now[1] - steps)
        task.storage.put_own("data_seconds", round(mean, 6), reduce="max", keep=False)

    def _write(
        self, task: TaskView, kind: str, values: dict[str, Any], display: dict[str, Any]
    ) -> None:
        place = (kind, task.iteration, task.phase.epoch, _split(task))
        pictures: list[Any] = []
        if kind != "exception":  # they may have to be waited for
            pictures = [task.storage.take_images(), task.storage.take_histograms()]
        for writer in task.writers:
            writer.write(Record(*place, dict(values), display, *pictures))

    def _mark(self, task: TaskView) -> None:
        self._marks.append((time.perf_counter(), task.iteration, task.progress.samples))

    def _speed(self) -> tuple[float, float]:
        """(images per second, seconds per step) over the marks kept."""
        (t0, steps0, samples0), (t1, steps1, samples1) = self._marks[0], self._marks[-1]
        seconds = max(t1 - t0, 1e-9)
        return (samples1 - samples0) / seconds, seconds / max(steps1 - steps0, 1)


def _losses(entries: list[LossEntry]) -> dict[str, Any]:
    """Of the last step."""
    parts = entries[-1].parts
    named = {f"{MAIN}.{name}": value for name, value in parts.items() if name != MAIN}
    return {MAIN: parts[MAIN], **named}


def _tell_start_up() -> None:
    line = startup.finish()
    if line and is_primary():
        print(wrapped(line, columns(sys.stdout)), flush=True)  # noqa: T201
        log.info("%s", line)


def _split(task: TaskView) -> str:
    return "train" if task.train else "test"
