"""`HOOKS.PERF_STATS`: log the time of each stage of a step.

Only this hook enables timing of stages: a clock reading, and on a GPU two events, for each.
"""

from __future__ import annotations

import logging

from sslengine.hooks.events import Hook, TaskView

log = logging.getLogger("sslengine")


class LogPerfStats(Hook):
    def __init__(self, frequency: int = -1) -> None:
        self.frequency = frequency

    def on_phase_start(self, task: TaskView) -> None:
        task.perf.start(measure_gpu=task.device.type == "cuda")

    def on_step(self, task: TaskView) -> None:
        if self.frequency > 0 and task.progress.step % self.frequency == 0:
            self._log(task)

    def on_phase_end(self, task: TaskView) -> None:
        self._log(task)

    def _log(self, task: TaskView) -> None:
        log.info("stage times, means of this phase:\n%s", task.perf.report_str())
