"""`config.PROFILING`: run some train steps under torch's profiler.

It writes to `<run>/profile/`, for each rank of PROFILED_RANKS:

    rank0_trace.json               for chrome://tracing or https://ui.perfetto.dev
    rank0_ops.txt                  the operators that take most time
    tensorboard/                   the trace for TensorBoard's profiler (TENSORBOARD_TRACE)

Only the steps in the window are slower: compare their shares, not their times.
"""

from __future__ import annotations

import logging
import shutil
import warnings
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, schedule

from sslengine.distributed.ranks import rank
from sslengine.errors import ConfigError
from sslengine.hooks.events import Hook, TaskView
from sslengine.hooks.options import ProfilingOptions
from sslengine.trust import is_config_trusted

log = logging.getLogger("sslengine")

OPERATORS = 30  # lines of the table


def profile_folder(run_dir: Path, chosen: str) -> Path:
    """The folder of the profile. A config that is not trusted cannot choose it."""
    own = chosen in ("", ".") or not is_config_trusted()
    return run_dir / "profile" if own else Path(chosen)


class ProfileSteps(Hook):
    def __init__(self, options: ProfilingOptions, run_dir: Path) -> None:
        self.options = options
        self.folder = profile_folder(run_dir, options.OUTPUT_FOLDER)
        self.begin, self.record = options.START_ITERATION, options.first_recorded
        self.end = self.record + options.NUM_ITERATIONS
        self._mine = rank() in options.PROFILED_RANKS
        self._profiler: Any = None

    def on_start(self, task: TaskView) -> None:
        if self._mine and self.options.RUNTIME_PROFILING.USE_PROFILER:
            self._activities(task.device)  # raises at start rather than in the window
        if self._mine and task.iteration > self.begin:
            log.info("no profile: the run resumes from step %d, after the window", task.iteration)

    def on_step_start(self, task: TaskView) -> None:
        if not (self._mine and task.train):
            return
        if task.iteration == self.begin and self.options.RUNTIME_PROFILING.USE_PROFILER:
            self._profiler = self._make_profiler(task.device)
            _quietly(self._profiler.start)

    def on_step(self, task: TaskView) -> None:
        if not task.train:
            return
        if self._profiler is not None:
            _quietly(self._profiler.step)
        if task.iteration == self.end:
            self._close()
            if self.options.STOP_TRAINING_AFTER_PROFILING:
                task.leave("config.PROFILING.STOP_TRAINING_AFTER_PROFILING")

    def on_end(self, task: TaskView) -> None:
        self._close()  # the run was shorter than the window

    def on_exception(self, task: TaskView) -> None:
        self._close()

    def _close(self) -> None:
        if self._profiler is not None:
            profiler, self._profiler = self._profiler, None
            _quietly(profiler.stop)

    def _make_profiler(self, device: torch.device) -> Any:
        steps = {"warmup": self.options.WARMUP_ITERATIONS, "active": self.options.NUM_ITERATIONS}

        def make() -> Any:
            return profile(
                activities=self._activities(device),
                schedule=schedule(wait=0, repeat=1, **steps),
                on_trace_ready=self._write_trace,
                profile_memory=True,
            )

        return _quietly(make)

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
        trace = self._path("trace.json")
        profiler.export_chrome_trace(str(trace))
        on_gpu = ProfilerActivity.CUDA in profiler.activities
        order = "self_cuda_time_total" if on_gpu else "self_cpu_time_total"
        operators = profiler.key_averages()
        self._write("ops.txt", operators.table(sort_by=order, row_limit=OPERATORS))
        if self.options.RUNTIME_PROFILING.TENSORBOARD_TRACE:
            board = self.folder / "tensorboard"
            board.mkdir(exist_ok=True)
            shutil.copyfile(trace, board / f"rank{rank()}.{self.end}.pt.trace.json")
        log.info("steps %d to %d profiled: %s", self.record + 1, self.end, trace)

    def _write(self, name: str, text: str) -> None:
        self._path(name).write_text(text.rstrip() + "\n", encoding="utf-8")

    def _path(self, name: str) -> Path:
        self.folder.mkdir(parents=True, exist_ok=True)
        return self.folder / f"rank{rank()}_{name}"


def _quietly(call: Any) -> Any:
    """Silence torch's warnings about short warm-ups and cleared events: both are configured."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return call()
