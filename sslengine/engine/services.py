"""What the engine does at an event after all hooks, in this order:

    read and written    LogMetrics: metrics become those of all ranks, writers get the record
    (readers)           readers that Python code has added: the history that `fit` returns
    decided             StopEarly
    saved               SaveCheckpoints
    left                StopOnSignals

So the record of an event holds what any hook puts there, and a checkpoint what all hooks did.
Hooks do not know the services. They ask the task: `task.saves_at_phase_end`, `task.leave(...)`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from sslengine.checkpoint.options import CheckpointOptions
from sslengine.config.options import RunOptions
from sslengine.config.sections import read
from sslengine.engine.checkpointing import SaveCheckpoints
from sslengine.engine.early_stopping import StopEarly
from sslengine.engine.metrics import LogMetrics
from sslengine.engine.preemption import StopOnSignals
from sslengine.hooks.options import HooksOptions


@dataclass(frozen=True)
class Services:
    """Without any of them, as `Services()`, a run leaves nothing behind."""

    metrics: LogMetrics | None = None
    readers: tuple[Any, ...] = ()
    early_stopping: StopEarly | None = None
    checkpoints: SaveCheckpoints | None = None
    signals: StopOnSignals | None = None

    def __iter__(self) -> Iterator[Any]:
        """Yield the services in their order. Each has the events of a hook."""
        last = self.early_stopping, self.checkpoints, self.signals
        return (each for each in (self.metrics, *self.readers, *last) if each is not None)

    def saves_at_phase_end(self, task: Any) -> bool:
        """Does the end of this train phase bring a checkpoint?"""
        saves = self.checkpoints
        return saves is not None and saves.name_at_phase_end(task) is not None

    def leave(self, who: str) -> None:
        """Save the run after this step and leave. A run that saves nothing continues."""
        if self.signals is not None:
            self.signals.ask(who)


def services_of(
    config: DictConfig,
    run_dir: Path | None,
    interrupts: bool = True,
    readers: tuple[Any, ...] = (),
) -> Services:
    """Make the services of a run; without a folder nothing is saved.

    interrupts: Ctrl-C saves the run, as other signals do.
    """
    hooks = read(config, HooksOptions)
    early, checkpoints = hooks.EARLY_STOPPING, None
    if run_dir is not None:
        checkpoints = SaveCheckpoints(run_dir / "checkpoints", read(config, CheckpointOptions))
    return Services(
        LogMetrics(read(config, RunOptions).LOG_FREQUENCY, hooks.PERF_STATS.ROLLING_BTIME_FREQ),
        readers,
        StopEarly(early) if early.MONITOR else None,
        checkpoints,
        None if checkpoints is None else StopOnSignals(checkpoints, interrupts),
    )
