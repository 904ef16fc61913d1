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
from sslengine.hooks.eval_mode import MaskAbsentClasses, PreciseBatchNorm
from sslengine.hooks.events import EVENTS
from sslengine.hooks.gradients import ClipGradients, FreezeParameters, LogGradientNorm
from sslengine.hooks.options import HooksOptions, ProfilingOptions
from sslengine.hooks.profile import LogGpuMemory, LogGpus, ProfileSteps
from sslengine.hooks.timing import LogPerfStats
from sslengine.meters import MetersOptions
from sslengine.models.options import ModelOptions
from sslengine.registry import HOOK_ADAPTERS, HOOKS


def default_hooks(config: DictConfig, run_dir: Path | None) -> list[Any]:
    """Make the hooks that the config asks for. run_dir: None of a run that keeps no files."""
    hooks, model = read(config, HooksOptions), read(config, ModelOptions)
    profiling, frequency = read(config, ProfilingOptions), read(config, RunOptions).LOG_FREQUENCY
    on_gpu = read(config, MachineOptions).DEVICE != "cpu"
    memory, stages, board = hooks.MEMORY_SUMMARY, hooks.PERF_STATS, hooks.TENSORBOARD_SETUP
    frozen = model.TEMP_FROZEN_PARAMS_ITER_MAP, model.TEMP_FROZEN_PARAMS_EPOCH_MAP
    clip, logged = model.GRAD_CLIP, (board.LOG_PARAMS, board.LOG_PARAMS_GRADIENTS)
    first, where = profiling.first_recorded, (profiling.PROFILED_RANKS, profiling.OUTPUT_FOLDER)
    chosen: list[Any] = [
        stages.MONITOR_PERF_STATS and LogPerfStats(stages.PERF_STAT_FREQUENCY),
        hooks.MODEL_COMPLEXITY.COMPUTE_COMPLEXITY
        and HOOKS.get("model_complexity")(hooks.MODEL_COMPLEXITY.INPUT_SHAPE),
        on_gpu and hooks.LOG_GPU_STATS and LogGpus(),
        on_gpu and memory.PRINT_MEMORY_SUMMARY and LogGpuMemory(memory.LOG_ITERATION_NUM),
        read(config, DistributedOptions).DETECT_ANOMALOUS_PARAMS
        and HOOKS.get("unreached_parameters")(),
        any(frozen) and FreezeParameters(*frozen, model.TEMP_FROZEN_PARAMS_BY == "rate"),
        LogGradientNorm(frequency),
        clip.USE_GRAD_CLIP
        and ClipGradients(clip.MAX_NORM, clip.NORM_TYPE, clip.PER_PARAMETER, clip.PER_MODULE),
        board.USE_TENSORBOARD
        and any(logged)
        and HOOKS.get("tensorboard_histograms")(board.LOG_PARAMS_EVERY_N_ITERS, *logged),
        hooks.PRECISE_BN.ENABLED and PreciseBatchNorm(hooks.PRECISE_BN.NUM_ITERS),
        read(config, MetersOptions).model_output_mask and MaskAbsentClasses(),
        hooks.ONLINE_EVAL.EVERY and HOOKS.get("online_eval")(hooks.ONLINE_EVAL),
        hooks.COLLAPSE_SIGNS
        and LogCollapse(hooks.STOP_ON_COLLAPSE, model.starts_from_weights(), run_dir),
        profiling.MEMORY_PROFILING.TRACK_BY_LAYER_MEMORY
        and HOOKS.get("layer_memory")(first, *where),
        profiling.asked_for and ProfileSteps(profiling, run_dir or Path()),
    ]
    return [*filter(None, chosen), *map(make_extra, hooks.EXTRA)]


def make_extra(entry: str | dict[str, Any]) -> Any:
    """Make a hook that HOOKS.EXTRA names; one that was written for another engine is wrapped."""
    entry = {"name": entry} if isinstance(entry, str) else entry
    arguments = {key: value for key, value in entry.items() if key != "name"}
    hook = HOOKS.make(entry["name"], arguments, "config.HOOKS.EXTRA")
    if any(hasattr(hook, event) for event in EVENTS):
        return hook
    tries = (HOOK_ADAPTERS.get(name)(hook) for name in HOOK_ADAPTERS.names())
    return next((each for each in tries if each is not None), hook)
