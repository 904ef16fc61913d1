"""How long each stage of a step takes, on the host and on the GPU, once `start` was called.

GPU time comes from CUDA events that are read only once they are done, so nothing here ever waits.
"""

from __future__ import annotations

from collections import deque
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from time import perf_counter

import torch

STAGES = (
    "read_sample",
    "forward",
    "loss_compute",
    "loss_all_reduce",
    "meters_update",
    "backward",
    "optimizer_step",
    "train_step_total",
)


class StageTimer:
    """`with timer:` adds to `seconds` and `count`."""

    __slots__ = ("_begin", "count", "seconds")

    def __init__(self) -> None:
        self.seconds = 0.0
        self.count = 0
        self._begin = 0.0

    def __enter__(self) -> None:
        self._begin = perf_counter()

    def __exit__(self, *_: object) -> None:
        self.seconds += perf_counter() - self._begin
        self.count += 1

    def gpu_seconds(self) -> float | None:
        """Time on the GPU so far, if it is measured."""
        return None


class CudaStageTimer(StageTimer):
    """Host time, and GPU time between two events on the current stream."""

    __slots__ = ("_events", "_gpu_seconds", "_start_event")

    def __init__(self) -> None:
        super().__init__()
        self._events: deque[tuple[torch.cuda.Event, torch.cuda.Event]] = deque()
        self._gpu_seconds = 0.0

    def __enter__(self) -> None:
        super().__enter__()
        self._start_event = torch.cuda.Event(enable_timing=True)
        self._start_event.record()  # type: ignore[no-untyped-call]

    def __exit__(self, *error: object) -> None:
        end = torch.cuda.Event(enable_timing=True)
        end.record()  # type: ignore[no-untyped-call]
        self._events.append((self._start_event, end))
        super().__exit__(*error)

    def gpu_seconds(self) -> float | None:
        while self._events and self._events[0][1].query():  # type: ignore[no-untyped-call]
            start, end = self._events.popleft()
            self._gpu_seconds += start.elapsed_time(end) / 1000.0  # type: ignore[no-untyped-call]
        return self._gpu_seconds


@dataclass(frozen=True)
class StageTime:
    name: str
    count: int
    host_ms: float  # per call
    gpu_ms: float | None


class PerfStats:
    """One timer per stage, if they are asked for: `with perf.forward:`."""

    read_sample: AbstractContextManager[None]
    forward: AbstractContextManager[None]
    loss_compute: AbstractContextManager[None]
    loss_all_reduce: AbstractContextManager[None]
    meters_update: AbstractContextManager[None]
    backward: AbstractContextManager[None]
    optimizer_step: AbstractContextManager[None]
    train_step_total: AbstractContextManager[None]

    def __init__(self) -> None:
        self.timers: dict[str, StageTimer] = {}
        vars(self).update(dict.fromkeys(STAGES, nullcontext()))
        # Not of a phase but of the run: waiting for the loader, and, where HOOKS.ITERATION_TIMER
        # asks for it, what hooks and services do.
        self.data, self.hooks = StageTimer(), StageTimer()

    def start(self, measure_gpu: bool = False) -> None:
        """From now on stages are timed, from zero."""
        timer = CudaStageTimer if measure_gpu and torch.cuda.is_available() else StageTimer
        self.timers = {name: timer() for name in STAGES}
        vars(self).update(self.timers)

    def report(self) -> list[StageTime]:
        """Means since `start`, for the stages that ran."""
        rows = []
        for name, timer in self.timers.items():
            if timer.count:
                gpu = timer.gpu_seconds()
                per_call = 1000.0 / timer.count
                gpu_ms = None if gpu is None else gpu * per_call
                rows.append(StageTime(name, timer.count, timer.seconds * per_call, gpu_ms))
        return rows

    def report_str(self) -> str:
        """The report as a table of text."""
        if not self.timers:
            return "no stage is timed: set config.HOOKS.PERF_STATS.MONITOR_PERF_STATS=true"
        lines = [f"{'stage':<20}{'calls':>8}{'host ms':>12}{'gpu ms':>12}"]
        for row in self.report():
            gpu = "-" if row.gpu_ms is None else f"{row.gpu_ms:.3f}"
            lines.append(f"{row.name:<20}{row.count:>8}{row.host_ms:>12.3f}{gpu:>12}")
        return "\n".join(lines)
