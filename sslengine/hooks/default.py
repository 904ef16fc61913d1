"""The engine's hooks that a config enables, in the order in which they run.

The method's own hooks run before these. FreezeParameters runs before ClipGradients, so gradients
that it drops do not count in the norm. The hooks of HOOKS.EXTRA run last. The services
(sslengine/engine/services.py) run after all hooks.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from sslengine.config.options import DistributedOptions, MachineOptions, RunOptions
from sslengine.config.sections import read
from sslengine.hooks.collapse import LogCollapse
from sslengine.hooks.eval_mode import EvaluateLoss, MaskAbsentClasses, PreciseBatchNorm
from sslengine.hooks.events import EVENTS
from sslengine.hooks.gradients import (
    ClipGradients,
    FreezeParameters,
    LogGradientNorm,
    ReportUnreachedParameters,
)
from sslengine.hooks.machine import (
    LogComplexity,
    LogGpuMemory,
    LogGpus,
    LogMemoryPeaks,
    WriteMemorySnapshot,
)
from sslengine.hooks.options import HooksOptions, ProfilingOptions
from sslengine.hooks.pictures import TensorBoardHistograms
from sslengine.hooks.profile import IterationTimer, LogPerfStats, ProfileSteps
from sslengine.meters import MetersOptions
from sslengine.models.options import ModelOptions
from sslengine.registry import HOOK_ADAPTERS, HOOKS


def default_hooks(config: DictConfig, run_dir: Path | None) -> list[Any]:
    """Make the hooks that the config asks for. run_dir: None of a run that keeps no files."""
    hooks, model = read(config, HooksOptions), read(config, ModelOptions)
    chosen: list[Any] = [IterationTimer()] if hooks.ITERATION_TIMER else []
    if hooks.PERF_STATS.MONITOR_PERF_STATS:
        chosen.append(LogPerfStats(hooks.PERF_STATS.PERF_STAT_FREQUENCY))
    if hooks.MODEL_COMPLEXITY.COMPUTE_COMPLEXITY:
        chosen.append(LogComplexity(hooks.MODEL_COMPLEXITY.INPUT_SHAPE))
    on_gpu = read(config, MachineOptions).DEVICE != "cpu"
    if hooks.LOG_GPU_STATS and on_gpu:
        chosen.append(LogGpus())
    if hooks.MEMORY_SUMMARY.PRINT_MEMORY_SUMMARY and on_gpu:
        chosen.append(LogGpuMemory(hooks.MEMORY_SUMMARY.LOG_ITERATION_NUM))
    if read(config, DistributedOptions).DETECT_ANOMALOUS_PARAMS:
        chosen.append(ReportUnreachedParameters())
    frozen = model.TEMP_FROZEN_PARAMS_ITER_MAP, model.TEMP_FROZEN_PARAMS_EPOCH_MAP
    if any(frozen):
        chosen.append(FreezeParameters(*frozen, model.TEMP_FROZEN_PARAMS_BY == "rate"))
    chosen.append(LogGradientNorm(read(config, RunOptions).LOG_FREQUENCY))
    clip = model.GRAD_CLIP
    if clip.USE_GRAD_CLIP:
        how = clip.PER_PARAMETER, clip.PER_MODULE
        chosen.append(ClipGradients(clip.MAX_NORM, clip.NORM_TYPE, *how))
    board = hooks.TENSORBOARD_SETUP
    logged = board.LOG_PARAMS, board.LOG_PARAMS_GRADIENTS
    if board.USE_TENSORBOARD and any(logged):
        chosen.append(TensorBoardHistograms(board.LOG_PARAMS_EVERY_N_ITERS, *logged))
    if hooks.PRECISE_BN.ENABLED:
        chosen.append(PreciseBatchNorm(hooks.PRECISE_BN.NUM_ITERS))
    if read(config, MetersOptions).model_output_mask:
        chosen.append(MaskAbsentClasses())
    if hooks.EVALUATE_LOSS.SETS:
        chosen.append(EvaluateLoss(hooks.EVALUATE_LOSS))
    if hooks.ONLINE_EVAL.EVERY:
        chosen.append(HOOKS.get("online_eval")(hooks.ONLINE_EVAL))
    if hooks.COLLAPSE_SIGNS:
        chosen.append(LogCollapse(hooks.STOP_ON_COLLAPSE, model.starts_from_weights(), run_dir))
    if hooks.MEMORY_SUMMARY.LOG_PEAKS:
        chosen.append(LogMemoryPeaks(read(config, RunOptions).LOG_FREQUENCY))
    profiling = read(config, ProfilingOptions)
    if profiling.MEMORY_PROFILING.TRACK_BY_LAYER_MEMORY:
        where = profiling.PROFILED_RANKS, profiling.OUTPUT_FOLDER
        chosen.append(WriteMemorySnapshot(profiling.first_recorded, *where))
    if profiling.asked_for:
        chosen.append(ProfileSteps(profiling, run_dir or Path()))
    chosen.extend(_extra(entry) for entry in hooks.EXTRA)
    return chosen


def _extra(entry: str | dict[str, Any]) -> Any:
    entry = {"name": entry} if isinstance(entry, str) else entry
    arguments = {key: value for key, value in entry.items() if key != "name"}
    hook = HOOKS.make(entry["name"], arguments, "config.HOOKS.EXTRA")
    return hook if any(hasattr(hook, event) for event in EVENTS) else _adapted(hook)


def _adapted(hook: Any) -> Any:
    """Wrap a hook that was written for another engine."""
    tries = (HOOK_ADAPTERS.get(name)(hook) for name in HOOK_ADAPTERS.names())
    return next((each for each in tries if each is not None), hook)
