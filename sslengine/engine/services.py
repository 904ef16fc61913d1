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

import logging
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from sslengine.checkpoint.options import CheckpointOptions
from sslengine.config.options import RunOptions
from sslengine.config.sections import read
from sslengine.distributed.collectives import any_rank
from sslengine.dotted import leaves, no_such_metric
from sslengine.engine.checkpointing import SaveCheckpoints
from sslengine.engine.metrics import LogMetrics
from sslengine.engine.preemption import StopOnSignals
from sslengine.errors import ConfigError
from sslengine.hooks.events import Hook, Task
from sslengine.hooks.options import EarlyStoppingOptions, HooksOptions

log = logging.getLogger("sslengine")

MONITOR = "config.HOOKS.EARLY_STOPPING.MONITOR"


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


class StopEarly(Hook):
    """`HOOKS.EARLY_STOPPING`: end the run when a metric has not become better for a while.

    The metric is one that a phase ends with. All ranks agree before one ends. The rest of the run
    is skipped: the checkpoint that is written then says that the run is complete.
    """

    def __init__(self, options: EarlyStoppingOptions) -> None:
        self.monitor = options.metric
        self.split = self.monitor.partition(".")[0]
        self.sign = -1.0 if options.MODE == "max" else 1.0
        self.patience, self.min_delta = options.PATIENCE, options.MIN_DELTA
        self.best = math.inf  # times the sign: less is better
        self.waited = 0  # phases since

    def on_start(self, task: Task) -> None:
        if not any(phase.train == (self.split == "train") for phase in task.phases):
            raise ConfigError(f"{MONITOR}: {self.monitor}: this run has no {self.split} phases.")

    def on_phase_end(self, task: Task) -> None:
        if task.train != (self.split == "train") or not task.phase.complete:
            return
        if self.monitor.startswith("train.online.") and "online" not in task.phase_results:
            return  # not every phase is evaluated
        value = self.sign * self._read(task.phase_results)
        if value < self.best - self.min_delta:
            self.best, self.waited = value, 0
        else:
            self.waited += 1
        if any_rank(self.waited >= self.patience):
            best = f"best {self.sign * self.best:.6g}"
            log.info("%s: no better for %d phases (%s)", self.monitor, self.waited, best)
            task.stop()

    def _read(self, results: Mapping[str, Any]) -> float:
        known = dict(leaves({self.split: results}))
        if self.monitor not in known:
            raise ConfigError(f"{MONITOR}: {no_such_metric(self.monitor, known)}")
        return float(known[self.monitor])

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "waited": self.waited}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best, self.waited = float(state["best"]), int(state["waited"])
