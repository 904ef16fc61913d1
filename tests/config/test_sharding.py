from __future__ import annotations

from typing import Any

import pytest

from sslengine.config.facts import is_sharded
from sslengine.errors import ConfigError
from tests.config.recipes import resolved

AUTO = {"MODEL__FSDP_CONFIG__AUTO_SETUP_FSDP": True}
TASK = {"TRAINER__TASK_NAME": "self_supervision_fsdp_task"}


def test_vissls_switch_chooses_the_task() -> None:
    assert not is_sharded(resolved().config)
    assert is_sharded(resolved(**TASK).config)
    chosen = resolved(**AUTO)
    assert is_sharded(chosen.config)
    assert chosen.origins["config.TRAINER.TASK_NAME"].startswith("derived: MODEL.FSDP_CONFIG")
    assert not chosen.warnings


def test_zero_is_a_sharded_run_with_a_warning() -> None:
    chosen = resolved(OPTIMIZER__use_zero=True)
    assert is_sharded(chosen.config)
    (warning,) = chosen.warnings
    assert warning.startswith("config.OPTIMIZER.use_zero: ")


@pytest.mark.parametrize(
    ("level", "compute", "in_float32"),
    [("01", "float32", False), ("O1", "float32", True), ("O2", "bfloat16", False)],
)
def test_vissls_levels(level: str, compute: str, in_float32: bool) -> None:
    amp = {"USE_AMP": True, "AMP_DTYPE": "bfloat16"}
    config = resolved(
        **AUTO, MODEL__AMP_PARAMS=amp, MODEL__FSDP_CONFIG__AMP_TYPE=level
    ).config.MODEL  # fmt: skip
    assert config.AMP_PARAMS.AMP_TYPE == "pytorch"
    assert config.FSDP_CONFIG.compute_dtype == compute
    assert config.FSDP_CONFIG.fp32_reduce_scatter is in_float32


CHECKPOINTING = {"USE_ACTIVATION_CHECKPOINTING": True}
FP16 = {"DISTRIBUTED__GRADIENT_COMPRESSION": "fp16"}
POWER = {"DISTRIBUTED__GRADIENT_COMPRESSION": "powersgd"}


@pytest.mark.parametrize(
    ("key", "changes"),
    [
        ("DISTRIBUTED.MANUAL_GRADIENT_REDUCTION",
         {**TASK, "DISTRIBUTED__MANUAL_GRADIENT_REDUCTION": True}),
        ("MODEL.CHANNELS_LAST", {**TASK, "MODEL__CHANNELS_LAST": True}),
        ("DISTRIBUTED.DETECT_ANOMALOUS_PARAMS",
         {**TASK, "DISTRIBUTED__DETECT_ANOMALOUS_PARAMS": True}),
        ("HOOKS.PRECISE_BN.ENABLED", {**TASK, "HOOKS__PRECISE_BN__ENABLED": True}),
        ("HOOKS.MODEL_COMPLEXITY.COMPUTE_COMPLEXITY",
         {**TASK, "HOOKS__MODEL_COMPLEXITY__COMPUTE_COMPLEXITY": True}),
        ("MODEL.FSDP_CONFIG.compute_dtype",
         {**TASK, "MODEL__FSDP_CONFIG__compute_dtype": "float16", "MACHINE__PRECISION": "bf16"}),
        ("DISTRIBUTED.GRADIENT_COMPRESSION", {**TASK, **FP16}),
        ("MACHINE.PRECISION",
         {"MACHINE__PRECISION": "auto",
          "MODEL__AMP_PARAMS": {"USE_AMP": True, "AMP_TYPE": "pytorch"}}),
        ("DISTRIBUTED.GRADIENT_COMPRESSION",
         {**POWER, "DISTRIBUTED__MANUAL_GRADIENT_REDUCTION": True}),
        ("MODEL.COMPILE.USE_COMPILE",
         {"MODEL__COMPILE__USE_COMPILE": True, "MODEL__ACTIVATION_CHECKPOINTING": CHECKPOINTING}),
    ],
)  # fmt: skip
def test_what_cannot_go_together(key: str, changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=rf"^config\.{key}: "):
        resolved(**changes)


def test_all_conflicts_are_told_at_once() -> None:
    with pytest.raises(ConfigError, match=r"(?s)CHANNELS_LAST.*PRECISE_BN"):
        resolved(**TASK, HOOKS__PRECISE_BN__ENABLED=True, MODEL__CHANNELS_LAST=True)


def test_modes_are_inductors() -> None:
    with pytest.raises(ConfigError, match="only inductor has modes"):
        resolved(MODEL__COMPILE={"BACKEND": "eager", "MODE": "max-autotune"})


def test_half_precision_gets_loss_scaling() -> None:
    """VISSL's YAML of its largest networks does not ask for it."""
    half = resolved(**TASK, MODEL__FSDP_CONFIG__compute_dtype="float16").config.MODEL.AMP_PARAMS
    assert (half.USE_AMP, half.AMP_TYPE, half.AMP_DTYPE) == (True, "pytorch", "float16")
    assert not resolved(**TASK).config.MODEL.AMP_PARAMS.USE_AMP
