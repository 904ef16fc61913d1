"""Keys that a sharded run (FSDP) requires, and keys that cannot be combined.

As in VISSL, `MODEL.FSDP_CONFIG.AUTO_SETUP_FSDP: true` sets several keys. `OPTIMIZER.use_zero: true`
is an alias of a sharded run.

`MODEL.VIEWS_APART` is checked for training alone: images have several views, which reach the model
in one batch. An evaluation reads one view of each image, in eval mode.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from omegaconf import DictConfig

from sslengine.config.facts import precision_of_amp, run_facts
from sslengine.config.options import SHARDED_TASK
from sslengine.errors import ConfigError
from sslengine.registry import TRAIN_STEPS

# The collators that order a batch by views: all images' first views, then their second views.
_COLLATORS = ("simclr_collator", "multicrop_collator")
_AUTO = "MODEL.FSDP_CONFIG.AUTO_SETUP_FSDP"


def is_sharded(config: DictConfig) -> bool:
    return bool(config.TRAINER.TASK_NAME == SHARDED_TASK)


def sharding_values(config: DictConfig) -> Iterator[tuple[str, Any, str]]:
    """Yield (key path, value, reason) for the keys that AUTO_SETUP_FSDP and use_zero set."""
    fsdp, amp = config.MODEL.FSDP_CONFIG, config.MODEL.AMP_PARAMS
    if config.OPTIMIZER.use_zero:
        yield "TRAINER.TASK_NAME", SHARDED_TASK, "OPTIMIZER.use_zero"
    if not fsdp.AUTO_SETUP_FSDP:
        if is_sharded(config) and _unscaled_half(config) and not config.MACHINE.PRECISION:
            reason = "FSDP_CONFIG.compute_dtype float16 requires loss scaling"
            yield "MODEL.AMP_PARAMS.USE_AMP", True, reason
            yield "MODEL.AMP_PARAMS.AMP_TYPE", "pytorch", reason
            yield "MODEL.AMP_PARAMS.AMP_DTYPE", "float16", reason
        return
    yield "TRAINER.TASK_NAME", SHARDED_TASK, _AUTO
    if not amp.USE_AMP:
        return
    yield "MODEL.AMP_PARAMS.AMP_TYPE", "pytorch", _AUTO
    if fsdp.AMP_TYPE in ("O1", "O2"):
        half = fsdp.AMP_TYPE == "O2"
        reason = f"{_AUTO}, AMP_TYPE {fsdp.AMP_TYPE}"
        dtype = amp.AMP_DTYPE if half else "float32"
        yield "MODEL.FSDP_CONFIG.mixed_precision", True, reason
        yield "MODEL.FSDP_CONFIG.compute_dtype", dtype, reason
        yield "MODEL.FSDP_CONFIG.fp32_reduce_scatter", not half, reason


def expect_no_conflict(config: DictConfig) -> None:
    """Raise one ConfigError that lists all keys that contradict each other."""
    problems = [*_sharding_problems(config), *_compression_problems(config)]
    problems += _compile_problems(config)
    problems += _precision_problems(config)
    if problems:
        raise ConfigError("\n".join(f"config.{each}" for each in problems))


def _sharding_problems(config: DictConfig) -> Iterator[str]:
    if not is_sharded(config):
        return
    model, why = config.MODEL, "not with a sharded model (FSDP)"
    if config.DISTRIBUTED.MANUAL_GRADIENT_REDUCTION:
        yield f"DISTRIBUTED.MANUAL_GRADIENT_REDUCTION: {why}. Set false."
    if model.CHANNELS_LAST is True:
        yield f"MODEL.CHANNELS_LAST: {why}: torch shards only contiguous weights. Set false."
    if config.HOOKS.MODEL_COMPLEXITY.COMPUTE_COMPLEXITY:
        yield (
            f"HOOKS.MODEL_COMPLEXITY.COMPUTE_COMPLEXITY: {why}. Use it in a run with "
            f"config.TRAINER.TASK_NAME=self_supervision_task."
        )
    if config.DISTRIBUTED.DETECT_ANOMALOUS_PARAMS:
        yield (
            f"DISTRIBUTED.DETECT_ANOMALOUS_PARAMS: {why}, which reduces gradients differently. "
            f"Use it in a run with config.TRAINER.TASK_NAME=self_supervision_task."
        )
    if config.HOOKS.PRECISE_BN.ENABLED:
        yield f"HOOKS.PRECISE_BN.ENABLED: {why}; MODEL.SYNC_BN_CONFIG works. Set false."
    if config.HOOKS.ONLINE_EVAL.EVERY:
        yield (
            f"HOOKS.ONLINE_EVAL.EVERY: {why}, whose trunk cannot be run alone. Set 0, and evaluate "
            f"the checkpoints."
        )
    if _unscaled_half(config):
        yield (
            "MODEL.FSDP_CONFIG.compute_dtype: float16 requires loss scaling: set "
            "MACHINE.PRECISION=fp16, or MODEL.AMP_PARAMS.USE_AMP=true with AMP_DTYPE float16. Or "
            "use bfloat16."
        )


def _unscaled_half(config: DictConfig) -> bool:
    fsdp = config.MODEL.FSDP_CONFIG
    half = fsdp.mixed_precision and fsdp.compute_dtype == "float16"
    scaled = "fp16" in (config.MACHINE.PRECISION, precision_of_amp(config.MODEL))
    return bool(half and not scaled)


def _precision_problems(config: DictConfig) -> Iterator[str]:
    if config.MACHINE.PRECISION and config.MODEL.AMP_PARAMS.USE_AMP:
        yield (
            f"MACHINE.PRECISION: it is {config.MACHINE.PRECISION}, and MODEL.AMP_PARAMS.USE_AMP is "
            f'true: only one can be set. Set USE_AMP=false, or PRECISION="".'
        )


def _compression_problems(config: DictConfig) -> Iterator[str]:
    chosen = config.DISTRIBUTED.GRADIENT_COMPRESSION
    if chosen == "none":
        return
    path = f"DISTRIBUTED.GRADIENT_COMPRESSION: {chosen} requires DDP's reduction: not with"
    if is_sharded(config):
        yield f"{path} a sharded model (FSDP); see MODEL.FSDP_CONFIG.compute_dtype."
    if config.DISTRIBUTED.MANUAL_GRADIENT_REDUCTION:
        yield f"{path} DISTRIBUTED.MANUAL_GRADIENT_REDUCTION."


def _compile_problems(config: DictConfig) -> Iterator[str]:
    checkpointing = config.MODEL.ACTIVATION_CHECKPOINTING.USE_ACTIVATION_CHECKPOINTING
    if config.MODEL.COMPILE.USE_COMPILE and checkpointing:
        yield (
            "MODEL.COMPILE.USE_COMPILE: not with MODEL.ACTIVATION_CHECKPOINTING, whose second "
            "forward pass must not update batch norms. Set one of them to false."
        )


def expect_views(config: DictConfig) -> None:
    """Raise a ConfigError if VIEWS_APART would have no effect, or a wrong one."""
    if config.MODEL.VIEWS_APART:
        for problem in _view_problems(config):
            raise ConfigError(f"config.MODEL.VIEWS_APART: {problem}")


def _view_problems(config: DictConfig) -> Iterator[str]:
    facts, step = run_facts(config), config.TRAINER.TRAIN_STEP_NAME
    if config.MODEL.BASE_MODEL_NAME != "multi_input_output_model":
        yield "a custom model (BASE_MODEL_NAME) does not use it. Set it to false."
    if config.MODEL.MULTI_INPUT_HEAD_MAPPING:
        yield "each input of MULTI_INPUT_HEAD_MAPPING is a separate batch anyway. Set it to false."
    if facts.views_per_image < 2:
        yield "config.DATA.TRAIN.TRANSFORMS make one view of an image. Set it to false."
    if facts.collator not in _COLLATORS:
        yield (
            f"config.DATA.TRAIN.COLLATE_FUNCTION must be {' or '.join(_COLLATORS)}, "
            f"got {facts.collator!r}."
        )
    if getattr(TRAIN_STEPS.get(step), "in_chunks", False):
        yield f"{step} splits a batch into chunks in another way. Set it to false."
