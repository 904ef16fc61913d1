from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf

from sslengine.config.sections import section_problems
from sslengine.models.options import ModelOptions, ResNetOptions

# VISSL's keys that have an effect, and their defaults.
VISSL = """
BASE_MODEL_NAME: multi_input_output_model
NON_TRAINABLE_PARAMS: []
TEMP_FROZEN_PARAMS_ITER_MAP: []
INPUT_TYPE: rgb
MULTI_INPUT_HEAD_MAPPING: []
SINGLE_PASS_EVERY_CROP: false
ACTIVATION_CHECKPOINTING:
  {USE_ACTIVATION_CHECKPOINTING: false, NUM_ACTIVATION_CHECKPOINTING_SPLITS: 2}
FSDP_CONFIG:
  AUTO_SETUP_FSDP: false
  AUTO_WRAP_THRESHOLD: 0
  AMP_TYPE: "01"
  mixed_precision: true
  fp32_reduce_scatter: false
  compute_dtype: float32
FEATURE_EVAL_SETTINGS:
  EVAL_MODE_ON: false
  FREEZE_TRUNK_ONLY: false
  FREEZE_TRUNK_AND_HEAD: false
  EXTRACT_TRUNK_FEATURES_ONLY: false
  EVAL_TRUNK_AND_HEAD: false
  ASSERT_HEAD_LAYER_SHAPE_INIT: true
  SHOULD_FLATTEN_FEATS: true
  LINEAR_EVAL_FEAT_POOL_OPS_MAP: []
GRAD_CLIP: {USE_GRAD_CLIP: false, NORM_TYPE: 2, MAX_NORM: 1}
TRUNK:
  NAME: resnet
  RESNETS:
    DEPTH: 50
    WIDTH_MULTIPLIER: 1
    NORM: BatchNorm
    GROUPNORM_GROUPS: 32
    GROUPS: 1
    ZERO_INIT_RESIDUAL: false
    WIDTH_PER_GROUP: 64
    LAYER4_STRIDE: 2
  VISION_TRANSFORMERS:
    IMAGE_SIZE: 224
    PATCH_SIZE: 16
    NUM_LAYERS: 12
    NUM_HEADS: 12
    HIDDEN_DIM: 768
    MLP_DIM: 3072
    DROPOUT_RATE: 0
    ATTENTION_DROPOUT_RATE: 0
    DROP_PATH_RATE: 0
    QKV_BIAS: false
    QK_SCALE: false
    CHECKPOINT_BLOCK: false
HEAD: {PARAMS: [], BATCHNORM_EPS: 1.0e-5, BATCHNORM_MOMENTUM: 0.1, PARAMS_MULTIPLIER: 1.0}
SYNC_BN_CONFIG: {CONVERT_BN_TO_SYNC_BN: false, GROUP_SIZE: -1}
AMP_PARAMS: {USE_AMP: false, AMP_ARGS: {opt_level: O1}, AMP_TYPE: apex}
WEIGHTS_INIT:
  PARAMS_FILE: ""
  STATE_DICT_KEY_NAME: classy_state_dict
  SKIP_LAYERS: [num_batches_tracked]
  REMOVE_PREFIX: ""
  APPEND_PREFIX: ""
"""


def merged(tree: dict[str, Any]) -> Any:
    return OmegaConf.merge(OmegaConf.structured(ModelOptions), tree)


def problems(tree: dict[str, Any]) -> list[str]:
    """What the sections' checks yield, with the key path."""

    def walk(options: Any, path: str) -> Iterator[str]:
        for field in dataclasses.fields(options):
            value = getattr(options, field.name)
            if dataclasses.is_dataclass(value):
                yield from walk(value, f"{path}{field.name}.")
        yield from (f"{path}{problem}" for problem in section_problems(options))

    return list(walk(OmegaConf.to_object(merged(tree)), ""))


def test_vissl_keys_and_defaults() -> None:
    defaults = yaml.safe_load(VISSL)
    assert merged({}) == merged(defaults)
    assert problems({}) == []


def resnet(**options: Any) -> dict[str, Any]:
    return {"TRUNK": {"RESNETS": options}}


def vit(**options: Any) -> dict[str, Any]:
    return {"TRUNK": {"VISION_TRANSFORMERS": options}}


RESNETS = "TRUNK.RESNETS."
VIT = "TRUNK.VISION_TRANSFORMERS."


@pytest.mark.parametrize(
    ("tree", "key"),
    [
        (resnet(BLOCKS=[1, 1]), f"{RESNETS}BLOCKS"),
        (resnet(DEPTH=18, GROUPS=32), f"{RESNETS}GROUPS"),
        (resnet(WIDTH_MULTIPLIER=0), f"{RESNETS}WIDTH_MULTIPLIER"),
        (resnet(CHANNELS=[16, 32, 64]), f"{RESNETS}CHANNELS"),
        (resnet(CHANNELS=[16, 32, 64, 256], WIDTH_MULTIPLIER=0.25), f"{RESNETS}WIDTH_MULTIPLIER"),
        (resnet(CHANNELS=[1, 2, 4, 8], WIDTH_PER_GROUP=32), f"{RESNETS}WIDTH_PER_GROUP"),
        (resnet(CHANNELS=[32, 64, 80, 256], NORM="GroupNorm"), f"{RESNETS}GROUPNORM_GROUPS"),
        (resnet(WIDTH_MULTIPLIER=0.25, NORM="GroupNorm"), f"{RESNETS}GROUPNORM_GROUPS"),
        (vit(NUM_HEADS=7), f"{VIT}NUM_HEADS"),
        (vit(IMAGE_SIZE=100), f"{VIT}PATCH_SIZE"),
        (vit(QK_SCALE=True), f"{VIT}QK_SCALE"),
        ({"GRAD_CLIP": {"PER_PARAMETER": True, "PER_MODULE": True}}, "GRAD_CLIP.PER_MODULE"),
        ({"GRAD_CLIP": {"PER_PARAMETER": True, "NORM_TYPE": 1.0}}, "GRAD_CLIP.PER_PARAMETER"),
        ({"BASE_MODEL_NAME": ""}, "BASE_MODEL_NAME"),
        ({"AMP_PARAMS": {"AMP_ARGS": {"opt_level": "01"}}}, "AMP_PARAMS.AMP_ARGS.opt_level"),
        ({"WEIGHTS_INIT": {"STATE_DICT_KEY_NAME": 3}}, "WEIGHTS_INIT.STATE_DICT_KEY_NAME"),
        (
            {"FEATURE_EVAL_SETTINGS": {"FREEZE_TRUNK_ONLY": True}},
            "FEATURE_EVAL_SETTINGS.FREEZE_TRUNK_ONLY",
        ),
        ({"HEAD": {"PARAMS": [["mlp", 3]]}}, "HEAD.PARAMS.0"),
        ({"MULTI_INPUT_HEAD_MAPPING": ["images"]}, "MULTI_INPUT_HEAD_MAPPING.0"),
        (
            {"FEATURE_EVAL_SETTINGS": {"EVAL_MODE_ON": True, "LINEAR_EVAL_FEAT_POOL_OPS_MAP": [1]}},
            "FEATURE_EVAL_SETTINGS.LINEAR_EVAL_FEAT_POOL_OPS_MAP.0",
        ),
    ],
)
def test_the_key_that_is_wrong(tree: dict[str, Any], key: str) -> None:
    (found,) = problems(tree)
    assert found.partition(":")[0] == key


def test_group_norm_looks_inside_bottlenecks() -> None:
    narrow = resnet(NORM="GroupNorm", GROUPNORM_GROUPS=32, GROUPS=1, WIDTH_PER_GROUP=24)
    assert problems(narrow) == [
        f"{RESNETS}GROUPNORM_GROUPS: 32 groups do not divide a layer of 24 channels."
    ]
    assert problems(resnet(NORM="GroupNorm", GROUPS=32, WIDTH_PER_GROUP=4)) == []


def test_depth_and_blocks_decide_the_block() -> None:
    assert ResNetOptions(DEPTH=34).is_basic()
    assert not ResNetOptions(DEPTH=50).is_basic()
    assert ResNetOptions(DEPTH=50, BLOCK="basic").is_basic()
    assert ResNetOptions(BLOCKS=[1, 2, 3, 4]).stages() == (1, 2, 3, 4)
    assert ResNetOptions(DEPTH=200).stages() == (3, 24, 36, 3)
    assert ResNetOptions(WIDTH_MULTIPLIER=0.5).channels() == (32, 64, 128, 256)
    assert ResNetOptions(CHANNELS=[16, 32, 64, 256]).channels() == (16, 32, 64, 256)


def test_reading_the_options_does_not_import_torch() -> None:
    code = "import sys, sslengine.models.options; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
