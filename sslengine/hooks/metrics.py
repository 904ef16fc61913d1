"""The figures of a run: read every LOG_FREQUENCY steps and at the end of each phase."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

from sslengine.hooks.events import Hook, TaskView
from sslengine.monitor.loss_ledger import MAIN, LossEntry
from sslengine.monitor.writers import Record


class LogMetrics(Hook):
    """Reading the losses is the one moment in which the host waits for the device.

    All ranks read, so that all find a loss that is not finite at the same step; rank 0
    has writers and writes.
    """

    def __init__(self, frequency: int, rolling: int = -1) -> None:
        self.frequency = frequency
        # (time, train steps made, samples seen) at the last reads: the speed is between two.
        self._marks: deque[tuple[float, int, int]] = deque(
            maxlen=max(2, rolling // frequency + 1) if rolling > 0 else 2
        )

    def on_start(self, task: TaskView) -> None:
        self._total_steps = sum(phase.steps for phase in task.phases if phase.train)
        self._epochs = 1 + max(int(phase.epoch) for phase in task.phases)

    def on_phase_start(self, task: TaskView) -> None:
        self._marks.clear()
        self._mark(task)

    def on_step(self, task: TaskView) -> None:
        made = task.progress.step
        if task.train and (made == 1 or task.iteration % self.frequency == 0):
            self._write_steps(task, task.ledger.drain())

    def on_phase_end(self, task: TaskView) -> None:
        entries = task.ledger.drain()
        if task.train and entries:
            self._write_steps(task, entries)
        phase = task.phase
        for writer in task.writers:
            writer.write(
                Record(
                    kind="phase",
                    iteration=task.iteration,
                    epoch=phase.epoch,
                    split=_split(task),
                    values=dict(task.phase_results),
                    display={"epochs": self._epochs},
                )
            )

    def on_end(self, task: TaskView) -> None:
        for writer in task.writers:
            writer.close()

    def on_exception(self, task: TaskView) -> None:
        for writer in task.writers:
            writer.close()

    def _write_steps(self, task: TaskView, entries: list[LossEntry]) -> None:
        self._mark(task)
        if not task.writers or not entries:
            return
        speed, step_seconds = self._speed()
        last = entries[-1]
        values: dict[str, Any] = {"loss": last.parts[MAIN]}
        values.update({f"loss.{k}": v for k, v in last.parts.items() if k != MAIN})
        values["lr"] = task.optimizer.options_view.lr
        values["images_per_s"] = round(speed, 1)
        if len(entries) > 1:
            values["loss_mean"] = sum(e.parts[MAIN] for e in entries) / len(entries)
        display = {
            "step": task.progress.step,
            "steps": task.phase.steps,
            "epochs": self._epochs,
            "eta_seconds": step_seconds * (self._total_steps - task.iteration),
        }
        record = Record("step", task.iteration, task.phase.epoch, _split(task), values, display)
        for writer in task.writers:
            writer.write(record)

    def _mark(self, task: TaskView) -> None:
        self._marks.append((time.perf_counter(), task.iteration, task.progress.samples))

    def _speed(self) -> tuple[float, float]:
        """(images per second, seconds per step) over the marks kept."""
        (t0, steps0, samples0), (t1, steps1, samples1) = self._marks[0], self._marks[-1]
        seconds = max(t1 - t0, 1e-9)
        return (samples1 - samples0) / seconds, seconds / max(steps1 - steps0, 1)


def _split(task: TaskView) -> str:
    return "train" if task.train else "test"
