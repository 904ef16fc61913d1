"""Ending a run when a metric has not become better for a while.

The metric is one of those that a phase ends with. It is the same on all ranks; still, all ranks
agree before one of them ends. The rest of the run is skipped: the checkpoint that is written then
says that the run is complete.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

from sslengine.distributed.collectives import any_rank
from sslengine.dotted import leaves, no_such_metric
from sslengine.errors import ConfigError
from sslengine.hooks.events import Hook, Task
from sslengine.hooks.options import EarlyStoppingOptions

log = logging.getLogger("sslengine")

WHERE = "config.HOOKS.EARLY_STOPPING.MONITOR"


class StopEarly(Hook):
    """`HOOKS.EARLY_STOPPING`."""

    def __init__(self, options: EarlyStoppingOptions) -> None:
        self.monitor = options.metric
        self.split = self.monitor.partition(".")[0]
        self.sign = -1.0 if options.MODE == "max" else 1.0
        self.patience, self.min_delta = options.PATIENCE, options.MIN_DELTA
        self.best = math.inf  # times the sign: less is better
        self.waited = 0  # phases since

    def on_start(self, task: Task) -> None:
        if not any(phase.train == (self.split == "train") for phase in task.phases):
            raise ConfigError(f"{WHERE}: {self.monitor}: this run has no {self.split} phases.")

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
            raise ConfigError(f"{WHERE}: {no_such_metric(self.monitor, known)}")
        return float(known[self.monitor])

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "waited": self.waited}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best, self.waited = float(state["best"]), int(state["waited"])
