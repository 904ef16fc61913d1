"""The history of a run in memory, by step and by phase."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sslengine.hooks.events import Hook, TaskView
from sslengine.monitor.losses import MAIN


@dataclass
class History:
    # One record per train step: iteration (from 1), epoch, loss, its parts, lr.
    steps: list[dict[str, Any]] = field(default_factory=list)
    # One record per train or test phase: iteration, epoch, split, loss, meters.
    epochs: list[dict[str, Any]] = field(default_factory=list)

    def losses(self) -> list[float]:
        return [record["loss"] for record in self.steps]


class KeepHistory(Hook):
    """Fills a History. It reads losses when the ledger does, so it adds no synchronisation."""

    def __init__(self, history: History) -> None:
        self.history = history
        self._rates: dict[int, dict[str, float]] = {}

    def on_phase_start(self, task: TaskView) -> None:
        task.ledger.take_history()

    def on_update(self, task: TaskView) -> None:
        self._rates[task.iteration] = task.optimizer.learning_rates()

    def on_phase_end(self, task: TaskView) -> None:
        self._take_steps(task)
        if not task.phase.complete:
            return
        split = "train" if task.train else "test"
        record = {"iteration": task.iteration, "epoch": task.phase.epoch, "split": split}
        self.history.epochs.append({**record, **task.phase_results})

    def on_exception(self, task: TaskView) -> None:
        self._take_steps(task)

    def _take_steps(self, task: TaskView) -> None:
        entries = task.ledger.take_history()
        for entry in entries if task.train else ():
            parts = {f"loss.{name}": each for name, each in entry.parts.items() if name != MAIN}
            self.history.steps.append(
                {
                    "iteration": entry.iteration + 1,
                    "epoch": task.phase.epoch,
                    "loss": entry.parts[MAIN],
                    **parts,
                    **self._rates.pop(entry.iteration, {}),
                }
            )
