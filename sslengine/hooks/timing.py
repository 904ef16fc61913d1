"""Measure the time of the stages of a step: HOOKS.PERF_STATS."""

from __future__ import annotations

import logging
from collections import deque
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from time import perf_counter

import torch

from sslengine.hooks.events import Hook, Task

log = logging.getLogger("sslengine")

STAGES = ("read_sample", "forward", "loss_compute", "loss_all_reduce", "meters_update", "backward",
          "optimizer_step", "train_step_total")  # fmt: skip


class StageTimer:
    """`with timer:` adds to `seconds` and `count`; on a GPU also to `gpu_seconds`.

    GPU time comes from CUDA events that are read only once they are done, so nothing waits.
    """

    def __init__(self, measure_gpu: bool = False) -> None:
        self.seconds, self.count, self._begin = 0.0, 0, 0.0
        self._measure_gpu, self._gpu_seconds = measure_gpu, 0.0
        self._events: deque[list[torch.cuda.Event]] = deque()

    def __enter__(self) -> None:
        self._begin = perf_counter()
        if self._measure_gpu:
            self._events.append([_record_event()])

    def __exit__(self, *_: object) -> None:
        if self._measure_gpu:
            self._events[-1].append(_record_event())
        self.seconds += perf_counter() - self._begin
        self.count += 1

    def gpu_seconds(self) -> float | None:
        """Return the time on the GPU so far, if it is measured."""
        while self._events and self._events[0][1].query():  # type: ignore[no-untyped-call]
            start, end = self._events.popleft()
            self._gpu_seconds += start.elapsed_time(end) / 1000.0  # type: ignore[no-untyped-call]
        return self._gpu_seconds if self._measure_gpu else None


def _record_event() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record()  # type: ignore[no-untyped-call]
    return event


@dataclass(frozen=True)
class StageTime:
    name: str
    count: int
    host_ms: float  # per call
    gpu_ms: float | None


_NOT_TIMED: AbstractContextManager[None] = nullcontext()


class PerfStats:
    """One timer per stage, if they are asked for: `with perf.forward:`."""

    read_sample = forward = loss_compute = loss_all_reduce = _NOT_TIMED
    meters_update = backward = optimizer_step = train_step_total = _NOT_TIMED

    def __init__(self) -> None:
        self.timers: dict[str, StageTimer] = {}

    def start(self, measure_gpu: bool = False) -> None:
        """Time the stages from now on, from zero."""
        on_gpu = measure_gpu and torch.cuda.is_available()
        self.timers = {name: StageTimer(on_gpu) for name in STAGES}
        vars(self).update(self.timers)

    def report(self) -> list[StageTime]:
        """Return means since `start`, for the stages that ran."""
        rows = []
        for name, timer in self.timers.items():
            if timer.count:
                gpu, per_call = timer.gpu_seconds(), 1000.0 / timer.count
                gpu_ms = None if gpu is None else gpu * per_call
                rows.append(StageTime(name, timer.count, timer.seconds * per_call, gpu_ms))
        return rows

    def report_str(self) -> str:
        """Return the report as a table of text."""
        if not self.timers:
            return "no stage is timed: set config.HOOKS.PERF_STATS.MONITOR_PERF_STATS=true"
        lines = [f"{'stage':<20}{'calls':>8}{'host ms':>12}{'gpu ms':>12}"]
        for row in self.report():
            gpu = "-" if row.gpu_ms is None else f"{row.gpu_ms:.3f}"
            lines.append(f"{row.name:<20}{row.count:>8}{row.host_ms:>12.3f}{gpu:>12}")
        return "\n".join(lines)


class LogPerfStats(Hook):
    """Time the stages: a clock reading, and on a GPU two events, for each."""

    def __init__(self, frequency: int = -1) -> None:
        self.frequency = frequency

    def on_phase_start(self, task: Task) -> None:
        task.perf.start(measure_gpu=task.device.type == "cuda")

    def on_step(self, task: Task) -> None:
        if self.frequency > 0 and task.progress.step % self.frequency == 0:
            self.on_phase_end(task)

    def on_phase_end(self, task: Task) -> None:
        log.info("stage times, means of this phase:\n%s", task.perf.report_str())
