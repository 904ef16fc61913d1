"""Measure the memory that a run takes, and its steps by torch's profiler.

PROFILING writes to `<run>/profile/`, for each rank of PROFILED_RANKS:

    rank0_trace.json        for chrome://tracing or https://ui.perfetto.dev
    rank0_ops.txt           the operators that take most time
    tensorboard/            the trace for TensorBoard's profiler (TENSORBOARD_TRACE)
    rank0_memory.pickle     what a GPU allocates in one step: contrib/diagnostics.py

Only the steps in the window are slower: compare their shares, not their times.
"""

from __future__ import annotations

import logging
import shutil
import warnings
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, schedule

from sslengine.distributed.ranks import rank
from sslengine.errors import ConfigError
from sslengine.hooks.events import Hook, Task
from sslengine.hooks.options import ProfilingOptions, RuntimeProfilingOptions
from sslengine.trust import is_config_trusted

log = logging.getLogger("sslengine")

OPERATORS = 30  # lines of the table


class LogGpus(Hook):
    """`HOOKS.LOG_GPU_STATS`: name and memory of this rank's GPU."""

    def on_start(self, task: Task) -> None:
        if task.device.type == "cuda":
            free, total = (each / 2**30 for each in torch.cuda.mem_get_info(task.device))
            name = torch.cuda.get_device_name(task.device)
            log.info("%s: %s, %.1f of %.1f GiB free", task.device, name, free, total)


class LogGpuMemory(Hook):
    """`HOOKS.MEMORY_SUMMARY`: the allocator's own summary, after one step."""

    def __init__(self, iteration: int) -> None:
        self.iteration = iteration

    def on_step(self, task: Task) -> None:
        if task.device.type == "cuda" and task.train and task.iteration == self.iteration + 1:
            log.info("%s", torch.cuda.memory_summary(task.device))


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
        self.end = options.first_recorded + options.NUM_ITERATIONS
        self._mine = rank() in options.PROFILED_RANKS and options.RUNTIME_PROFILING.USE_PROFILER
        self._profiler: profile | None = None
        # Of short warm-ups and cleared events: both are configured.
        warnings.filterwarnings("ignore", module=r".*\.profiler?")

    def on_start(self, task: Task) -> None:
        if self._mine:
            choose_activities(self.options.RUNTIME_PROFILING, task.device)  # an error comes early
            if task.iteration > self.options.START_ITERATION:
                log.info("no profile: the run resumes at step %d, after the window", task.iteration)

    def on_step_start(self, task: Task) -> None:
        options = self.options
        if self._mine and task.train and task.iteration == options.START_ITERATION:
            self._profiler = profile(
                activities=choose_activities(options.RUNTIME_PROFILING, task.device),
                schedule=schedule(
                    wait=0, warmup=options.WARMUP_ITERATIONS, active=options.NUM_ITERATIONS,
                    repeat=1,
                ),
                on_trace_ready=self._write_trace,
                profile_memory=True,
            )  # fmt: skip
            self._profiler.start()

    def on_step(self, task: Task) -> None:
        if not task.train:
            return
        if self._profiler is not None:
            self._profiler.step()
        if task.iteration == self.end:
            self.on_end(task)
            if self.options.STOP_TRAINING_AFTER_PROFILING:
                task.leave("config.PROFILING.STOP_TRAINING_AFTER_PROFILING")

    def on_end(self, task: Task) -> None:
        """Close the window; the run may be shorter."""
        if self._profiler is not None:
            profiler, self._profiler = self._profiler, None
            profiler.stop()

    on_exception = on_end

    def _write_trace(self, profiler: profile) -> None:
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
        log.info("steps %d to %d profiled: %s", self.options.first_recorded + 1, self.end, trace)


def choose_activities(
    options: RuntimeProfilingOptions, device: torch.device
) -> list[ProfilerActivity]:
    chosen = [ProfilerActivity.CPU] if options.PROFILE_CPU else []
    chosen += [ProfilerActivity.CUDA] if options.PROFILE_GPU and device.type == "cuda" else []
    if not chosen:
        raise ConfigError("config.PROFILING.RUNTIME_PROFILING.PROFILE_CPU: this run is on a CPU.")
    return chosen
