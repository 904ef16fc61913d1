"""Measure the time that a run takes: of steps and stages, or by torch's profiler.

    HOOKS.PERF_STATS        the time of each stage of a step, in the log
    HOOKS.ITERATION_TIMER   the time of a train step, and the share of it spent in hooks
    PROFILING               some train steps under torch's profiler. It writes to `<run>/profile/`,
                            for each rank of PROFILED_RANKS:

    rank0_trace.json        for chrome://tracing or https://ui.perfetto.dev
    rank0_ops.txt           the operators that take most time
    tensorboard/            the trace for TensorBoard's profiler (TENSORBOARD_TRACE)

Only the steps in the window are slower: compare their shares, not their times.
"""

from __future__ import annotations

import logging
import shutil
import warnings
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, TypeVar

import torch
from torch.profiler import ProfilerActivity, profile, schedule

from sslengine.distributed.ranks import rank
from sslengine.errors import ConfigError
from sslengine.hooks.events import Hook, Task
from sslengine.hooks.options import ProfilingOptions
from sslengine.monitor.console import ConsoleWriter
from sslengine.monitor.writers import clock
from sslengine.trust import is_config_trusted

log = logging.getLogger("sslengine")
Made = TypeVar("Made")

STAGES = ("read_sample", "forward", "loss_compute", "loss_all_reduce", "meters_update", "backward",
          "optimizer_step", "train_step_total")  # fmt: skip
OPERATORS = 30  # lines of the table
# Not counted: the first steps of a process are slow (it allocates memory and chooses kernels).
WARMUP_STEPS = 3


# ---- times


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
        # Not of a phase but of the run: what hooks and services do (HOOKS.ITERATION_TIMER).
        self.hooks = StageTimer()

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
            self._log(task)

    def on_phase_end(self, task: Task) -> None:
        self._log(task)

    def _log(self, task: Task) -> None:
        log.info("stage times, means of this phase:\n%s", task.perf.report_str())


class IterationTimer(Hook):
    """Print one line at the end of the run, and add two metrics to each train phase.

    The time includes reading data, and not test phases. The hooks' share is the time of all hooks
    and services, with logging and checkpoints.
    """

    def __init__(self, warmup_steps: int = WARMUP_STEPS) -> None:
        self.warmup_left = warmup_steps
        self.steps = 0  # counted
        self.seconds = 0.0  # of these steps, and of the hooks at the ends of phases
        self.in_hooks = 0.0  # the part of `seconds` spent in hooks
        # When the last train step ended, and the time spent in hooks until then.
        self._mark: tuple[float, float] | None = None

    def on_phase_start(self, task: Task) -> None:
        self._count_end_of_phase(task)
        self._mark = (perf_counter(), task.perf.hooks.seconds) if task.train else None

    def on_step(self, task: Task) -> None:
        if self._mark is None:
            return
        (began, hooks), self._mark = self._mark, (perf_counter(), task.perf.hooks.seconds)
        self.seconds += self._mark[0] - began
        self.in_hooks += self._mark[1] - hooks
        if self.warmup_left:
            self.warmup_left -= 1
            self.seconds = self.in_hooks = 0.0
        else:
            self.steps += 1

    def on_phase_end(self, task: Task) -> None:
        if task.train and self.steps:
            task.phase_results["seconds_per_step"] = self.seconds / self.steps
            task.phase_results["percent_in_hooks"] = 100 * self.in_hooks / self.seconds

    def on_end(self, task: Task) -> None:
        self._count_end_of_phase(task)
        self._report(task)

    def on_exception(self, task: Task) -> None:
        self._report(task)

    def _count_end_of_phase(self, task: Task) -> None:
        if self._mark is not None and self.steps:
            taken = task.perf.hooks.seconds - self._mark[1]
            self.seconds += taken
            self.in_hooks += taken

    def _report(self, task: Task) -> None:
        if not self.steps:
            return
        line = (
            f"{self.steps} steps in {clock(self.seconds)}, {self.seconds / self.steps:.4g} s each; "
            f"{100 * self.in_hooks / self.seconds:.1f} % in hooks"
        )
        log.info("%s", line)
        for writer in task.writers:
            if isinstance(writer, ConsoleWriter):
                writer.console.print(line)


# ---- torch's profiler


def profile_folder(run_dir: Path, chosen: str) -> Path:
    """Return the folder of the profile. A config that is not trusted cannot choose it."""
    own = chosen in ("", ".") or not is_config_trusted()
    return run_dir / "profile" if own else Path(chosen)


class ProfileSteps(Hook):
    """`PROFILING.RUNTIME_PROFILING`: record the steps of a window."""

    def __init__(self, options: ProfilingOptions, run_dir: Path) -> None:
        self.options = options
        self.folder = profile_folder(run_dir, options.OUTPUT_FOLDER)
        self.begin, self.record = options.START_ITERATION, options.first_recorded
        self.end = self.record + options.NUM_ITERATIONS
        self._mine = rank() in options.PROFILED_RANKS
        self._profiler: Any = None

    def on_start(self, task: Task) -> None:
        if self._mine and self.options.RUNTIME_PROFILING.USE_PROFILER:
            self._activities(task.device)  # raises at start rather than in the window
        if self._mine and task.iteration > self.begin:
            log.info("no profile: the run resumes from step %d, after the window", task.iteration)

    def on_step_start(self, task: Task) -> None:
        if not (self._mine and task.train):
            return
        if task.iteration == self.begin and self.options.RUNTIME_PROFILING.USE_PROFILER:
            self._profiler = self._make_profiler(task.device)
            _call_without_warnings(self._profiler.start)

    def on_step(self, task: Task) -> None:
        if not task.train:
            return
        if self._profiler is not None:
            _call_without_warnings(self._profiler.step)
        if task.iteration == self.end:
            self._close()
            if self.options.STOP_TRAINING_AFTER_PROFILING:
                task.leave("config.PROFILING.STOP_TRAINING_AFTER_PROFILING")

    def on_end(self, task: Task) -> None:
        self._close()  # the run was shorter than the window

    def on_exception(self, task: Task) -> None:
        self._close()

    def _close(self) -> None:
        if self._profiler is not None:
            profiler, self._profiler = self._profiler, None
            _call_without_warnings(profiler.stop)

    def _make_profiler(self, device: torch.device) -> Any:
        options = self.options
        steps = {"warmup": options.WARMUP_ITERATIONS, "active": options.NUM_ITERATIONS}
        return _call_without_warnings(
            lambda: profile(
                activities=self._activities(device),
                schedule=schedule(wait=0, repeat=1, **steps),
                on_trace_ready=self._write_trace,
                profile_memory=True,
            )
        )

    def _activities(self, device: torch.device) -> list[ProfilerActivity]:
        options, chosen = self.options.RUNTIME_PROFILING, []
        if options.PROFILE_CPU:
            chosen.append(ProfilerActivity.CPU)
        if options.PROFILE_GPU and device.type == "cuda":
            chosen.append(ProfilerActivity.CUDA)
        if not chosen:
            raise ConfigError(
                "config.PROFILING.RUNTIME_PROFILING: PROFILE_CPU is false, and this run is on a "
                "CPU; there is nothing to profile. Set it to true."
            )
        return chosen

    def _write_trace(self, profiler: Any) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        trace = self.folder / f"rank{rank()}_trace.json"
        profiler.export_chrome_trace(str(trace))
        on_gpu = ProfilerActivity.CUDA in profiler.activities
        order = "self_cuda_time_total" if on_gpu else "self_cpu_time_total"
        table = profiler.key_averages().table(sort_by=order, row_limit=OPERATORS)
        operators = self.folder / f"rank{rank()}_ops.txt"
        operators.write_text(table.rstrip() + "\n", encoding="utf-8")
        if self.options.RUNTIME_PROFILING.TENSORBOARD_TRACE:
            board = self.folder / "tensorboard"
            board.mkdir(exist_ok=True)
            shutil.copyfile(trace, board / f"rank{rank()}.{self.end}.pt.trace.json")
        log.info("steps %d to %d profiled: %s", self.record + 1, self.end, trace)


def _call_without_warnings(call: Callable[[], Made]) -> Made:
    """Silence torch's warnings about short warm-ups and cleared events: both are configured."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return call()
