from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from sslengine.config.resolve import resolve_dict
from sslengine.config.sections import section_problems
from sslengine.errors import ConfigError
from sslengine.models.trunks.options import (
    BeitOptions,
    ConvNextOptions,
    RegNetOptions,
    SwinTransformerOptions,
)
from tests.models.trunks import checks

# VISSL's keys that have an effect, and their defaults.
VISSL = """
BASE_MODEL_NAME: multi_input_output_model
NON_TRAINABLE_PARAMS: []
TEMP_FROZEN_PARAMS_ITER_MAP: []
INPUT_TYPE: rgb
MULTI_INPUT_HEAD_MAPPING: []
SINGLE_PASS_EVERY_CROP: false
ACTIVATION_CHECKPOINTING: {USE_ACTIVATION_CHECKPOINTING: false}
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
  XCIT: {HIDDEN_DIM: 384, NUM_LAYERS: 12, NUM_HEADS: 8, ETA: 1.0, DROP_PATH_RATE: 0.05,
         TOKENS_NORM: true, QKV_BIAS: true}
  SWIN_TRANSFORMER: {DEPTHS: [2, 2, 6, 2], NUM_HEADS: [3, 6, 12, 24], WINDOW_SIZE: 7, EMBED_DIM: 96,
                     PATCH_SIZE: 4, DROP_PATH_RATE: 0.1}
  CONVIT: {N_GPSA_LAYERS: 10, LOCALITY_DIM: 10, LOCALITY_STRENGTH: 1.0}
  CONVNEXT: {DEPTH: [3, 3, 27, 3]}
  BEIT: {HIDDEN_DIM: 768, NUM_LAYERS: 12, NUM_HEADS: 12, MLP_RATIO: 4.0, USE_ABS_POS_EMB: true,
         USE_MEAN_POOLING: true, DROP_PATH_RATE: 0.0, QKV_BIAS: false, USE_REL_POS_BIAS: false,
         USE_SHARED_REL_POS_BIAS: false, INIT_VALUES: false}
  MOBILE_NET: {TIMM_BN: false}
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


def problems(tree: dict[str, Any]) -> list[str]:
    """What the sections' checks yield, with the key path."""

    def walk(options: Any, path: str) -> Iterator[str]:
        for name, value in vars(options).items():
            if dataclasses.is_dataclass(value):
                yield from walk(value, f"{path}{name}.")
        yield from (f"{path}{problem}" for problem in section_problems(options))

    return list(walk(checks.options(tree), ""))


def test_vissl_keys_and_defaults() -> None:
    ours, defaults = checks.options({}), checks.options(yaml.safe_load(VISSL))
    assert ours == defaults
    assert vars(ours.TRUNK) == vars(defaults.TRUNK)
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


def test_reading_the_options_does_not_import_torch() -> None:
    code = "import sys, sslengine.models.options; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# ---- trunks


STAGES = {
    "depths": [1, 2], "widths": [16, 32], "group_widths": [8, 8],
    "bottleneck_multipliers": [1.0, 1.0], "strides": [2, 2],
}  # fmt: skip
RULE = {"depth": 5, "w_0": 16, "w_a": 12.0, "w_m": 2.0, "group_width": 8}


@pytest.mark.parametrize(
    ("made", "key"),
    [
        (RegNetOptions(name="regnet_y_16gf", depth=3), "depth"),
        (RegNetOptions(name="regnet_x_8gf", use_se=True), "use_se"),
        (RegNetOptions(name="anynet", **RULE, **STAGES), "depth"),
        (RegNetOptions(name="anynet", **{**STAGES, "strides": [2]}), "depths"),
        (RegNetOptions(**RULE, strides=[2]), "strides"),
        (RegNetOptions(depth=3, w_0=8), "w_a"),
        (RegNetOptions(**{**RULE, "w_0": 20}), "w_0"),
        (SwinTransformerOptions(IMAGE_SIZE=30), "PATCH_SIZE"),
        (SwinTransformerOptions(NUM_HEADS=[3, 6]), "NUM_HEADS"),
        (SwinTransformerOptions(NUM_HEADS=[3, 5, 6, 6]), "NUM_HEADS.1"),
        (ConvNextOptions(DIMS=[8, 8]), "DIMS"),
        (ConvNextOptions(DEPTH=[1, 1, 1]), "DEPTH"),
        (BeitOptions(QK_SCALE=True), "QK_SCALE"),
        (BeitOptions(INIT_VALUES=True), "INIT_VALUES"),
    ],
)
def test_the_key_of_a_trunk_that_is_wrong(made: Any, key: str) -> None:
    assert key in [each.partition(":")[0] for each in section_problems(made)]


@pytest.mark.parametrize(
    ("library", "near", "name"),
    [("timm", "convnext_tinny", "convnext_tiny"), ("torchvision", "resnet5", "resnet50"),
     ("timm", "resnet5O.a1_in1k", "resnet50")],
)  # fmt: skip
def test_a_network_that_the_library_has_not(library: str, near: str, name: str) -> None:
    with pytest.raises(ConfigError, match=rf"{library.upper()}\.model: {library} has no.*{name}"):
        resolve_dict({"MODEL": {"TRUNK": {"NAME": library, library.upper(): {"model": near}}}})


@pytest.mark.parametrize(
    ("options", "text"),
    [({}, "expected the name of one of timm's networks"),
     ({"model": "resnet18", "arguments": {"num_classes": 3}}, "num_classes: a trunk has no"),
     ({"model": "resnet18", "arguments": {"in_chans": 3}}, "in_chans: set MODEL.INPUT_CHANNELS")],
)  # fmt: skip
def test_what_a_library_is_not_to_be_asked_for(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=rf"MODEL\.TRUNK\.TIMM\..*{text}"):
        resolve_dict({"MODEL": {"TRUNK": {"NAME": "timm", "TIMM": options}}})


def test_weights_may_have_a_name_of_their_own() -> None:
    options = {"model": "resnet50.a1_in1k"}
    resolve_dict({"MODEL": {"TRUNK": {"NAME": "timm", "TIMM": options}}})
