"""`config.HOOKS` and `config.PROFILING`: which hooks run, and how."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from sslengine.config.ranges import at_least, choice, choices
from sslengine.config.sections import named, section
from sslengine.dotted import full_metric_name
from sslengine.registry import HOOKS, LABEL_FREE, WRITERS

DEFAULT_WRITERS = ["console", "log", "json", "images"]


@dataclass
class PerfStatsOptions:
    # Log how long each stage of a step takes; on a GPU with CUDA events, without synchronisation.
    MONITOR_PERF_STATS: bool = False
    # Steps between two reports; -1: only at the end of each phase.
    PERF_STAT_FREQUENCY: int = at_least(-1, -1)
    # Number of last steps that images/s is averaged over; -1: all since the last log line.
    ROLLING_BTIME_FREQ: int = at_least(-1, -1)


@dataclass
class PreciseBnOptions:
    # Compute batch norm's running statistics again from training batches, before each test phase
    # and each checkpoint at the end of a train phase.
    ENABLED: bool = False
    # Number of batches per rank that the statistics are computed from.
    NUM_ITERS: int = at_least(1, 200)


@dataclass
class MemorySummaryOptions:
    # Log the GPU memory's state at one iteration.
    PRINT_MEMORY_SUMMARY: bool = True
    # The iteration after which the GPU memory is logged.
    LOG_ITERATION_NUM: int = 0


@dataclass
class ModelComplexityOptions:
    # Log parameters, flops and activations of the model.
    COMPUTE_COMPLEXITY: bool = False
    # Channels, height and width of the image for which flops are counted.
    INPUT_SHAPE: list[int] = field(default_factory=lambda: [3, 224, 224])


@dataclass
class TensorBoardOptions:
    # Write to <run>/tb_logs for TensorBoard. Needs pip install 'sslengine[tensorboard]'.
    USE_TENSORBOARD: bool = False
    # Minutes between two writes to the disk.
    FLUSH_EVERY_N_MIN: float = 5
    # Write histograms of parameters.
    LOG_PARAMS: bool = False
    # Write histograms of gradients.
    LOG_PARAMS_GRADIENTS: bool = False
    # Steps between two histograms.
    LOG_PARAMS_EVERY_N_ITERS: int = at_least(1, 310)


@dataclass
class OnlineEvalOptions:
    # Train phases between two evaluations of the features, which the last phase has too; 0: never.
    EVERY: int = at_least(0, 0)
    # What to compute: knn and probe, which need LABEL_SOURCES of DATA.TRAIN, and label_free.
    WHAT: list[str] = choices(["knn"], "knn", "probe", "label_free")
    # Number of training images, always the same ones.
    IMAGES: int = 2000
    # Numbers of neighbours that vote.
    TOPK: list[int] = at_least(1, [20])
    # Metrics that need no labels (docs/label_free.md).
    LABEL_FREE: list[str] = named(LABEL_FREE, ["rankme", "alpha_req", "uniformity"])
    # student, teacher, or auto: the one by which the method is evaluated.
    NETWORK: str = choice("auto", "student", "teacher")

    def check(self) -> Iterator[str]:
        most = max(self.TOPK, default=0)
        if most + 2 > self.IMAGES:
            yield f"IMAGES: expected {most + 2} or more, for {most} neighbours; got {self.IMAGES}."

    def names(self) -> Iterator[str]:
        """Yield the names of the metrics."""
        if "knn" in self.WHAT:
            yield from (f"knn_{k}" for k in self.TOPK)
        if "probe" in self.WHAT:
            yield "linear"
        if "label_free" in self.WHAT:
            yield from self.LABEL_FREE


@dataclass
class EarlyStoppingOptions:
    # End the run when this metric no longer improves: train.loss, online.knn20, or a metric of a
    # test phase, such as test.loss or test.accuracy_list_meter.top_1.0. Empty: never.
    MONITOR: str = ""
    # Is a lower (min) or a higher (max) value better?
    MODE: str = choice("min", "max")
    # Phases in a row without improvement after which the run ends.
    PATIENCE: int = at_least(1, 10)
    # A change of at most this size is no improvement.
    MIN_DELTA: float = at_least(0, 0.0)

    def check(self) -> Iterator[str]:
        split, _, metric = self.metric.partition(".")
        if self.MONITOR and (split not in ("train", "test") or not metric):
            expected = "train.loss, test.loss or test.<meter>.<key>"
            yield f"MONITOR: expected {expected}; got {self.MONITOR!r}."

    @property
    def metric(self) -> str:
        """Return MONITOR by its full name."""
        return full_metric_name(self.MONITOR)


@section("HOOKS")
@dataclass
class HooksOptions:
    # Hooks of your own: names, or entries `{name: ..., its arguments}`.
    EXTRA: list[Any] = named(HOOKS, [])
    # Writers of metrics: names, or entries as above. TENSORBOARD_SETUP adds tensorboard.
    WRITERS: list[Any] = named(WRITERS, DEFAULT_WRITERS)
    # Stop at the first step whose loss is not finite.
    CHECK_NAN: bool = True
    # Log each GPU's name and memory once.
    LOG_GPU_STATS: bool = True
    PERF_STATS: PerfStatsOptions = field(default_factory=PerfStatsOptions)
    PRECISE_BN: PreciseBnOptions = field(default_factory=PreciseBnOptions)
    MEMORY_SUMMARY: MemorySummaryOptions = field(default_factory=MemorySummaryOptions)
    MODEL_COMPLEXITY: ModelComplexityOptions = field(default_factory=ModelComplexityOptions)
    TENSORBOARD_SETUP: TensorBoardOptions = field(default_factory=TensorBoardOptions)
    ONLINE_EVAL: OnlineEvalOptions = field(default_factory=OnlineEvalOptions)
    EARLY_STOPPING: EarlyStoppingOptions = field(default_factory=EarlyStoppingOptions)
    # Report spread and rank of projections and features at the end of each train phase.
    COLLAPSE_SIGNS: bool = True
    # End the run with an error at the first train phase whose signs say that it has collapsed.
    STOP_ON_COLLAPSE: bool = False

    def check(self) -> Iterator[str]:
        if self.STOP_ON_COLLAPSE and not self.COLLAPSE_SIGNS:
            yield "STOP_ON_COLLAPSE: needs COLLAPSE_SIGNS: true."


@dataclass
class MemoryProfilingOptions:
    # Write all allocations on the GPU in the first recorded step, for pytorch.org/memory_viz.
    TRACK_BY_LAYER_MEMORY: bool = False


@dataclass
class RuntimeProfilingOptions:
    # Write a trace of the recorded steps and a table of the operators that take most time.
    USE_PROFILER: bool = False
    # Record what runs on the CPU.
    PROFILE_CPU: bool = True
    # Record what runs on the GPU.
    PROFILE_GPU: bool = True
    # Write the trace also to `tensorboard`, for TensorBoard's profiler.
    TENSORBOARD_TRACE: bool = False

    def check(self) -> Iterator[str]:
        if self.USE_PROFILER and not (self.PROFILE_CPU or self.PROFILE_GPU):
            yield "USE_PROFILER: there is nothing to profile; set PROFILE_CPU or PROFILE_GPU."


@section("PROFILING")
@dataclass
class ProfilingOptions:
    # Number of train steps before the window.
    START_ITERATION: int = at_least(0, 0)
    # Number of first steps of the window, in which the profiler runs without recording.
    WARMUP_ITERATIONS: int = at_least(0, 0)
    # Number of recorded steps after these.
    NUM_ITERATIONS: int = at_least(1, 10)
    # Save the run and end it after the window, with exit status 75; the same command resumes it.
    STOP_TRAINING_AFTER_PROFILING: bool = False
    # Folder of the profile; ".": `profile` in the run's folder.
    OUTPUT_FOLDER: str = "."
    # Ranks that are profiled.
    PROFILED_RANKS: list[int] = field(default_factory=lambda: [0, 1])
    MEMORY_PROFILING: MemoryProfilingOptions = field(default_factory=MemoryProfilingOptions)
    RUNTIME_PROFILING: RuntimeProfilingOptions = field(default_factory=RuntimeProfilingOptions)

    @property
    def first_recorded(self) -> int:
        return self.START_ITERATION + self.WARMUP_ITERATIONS

    @property
    def asked_for(self) -> bool:
        return self.RUNTIME_PROFILING.USE_PROFILER or self.MEMORY_PROFILING.TRACK_BY_LAYER_MEMORY
