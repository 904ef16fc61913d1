"""Five train steps of DINO, in three epochs, beside the authors' code.

The numbers are those of facebookresearch/dino at commit 7c446df (`DINOLoss`, its networks and groups of
parameters, and the steps of `train_one_epoch`, in float64): the centre, a temperature that rises for three
epochs, schedules of rate, weight decay and momentum, each gradient clipped at 0.03, no gradients of the last
layer in the first epoch. Crops have one size, since timm and the authors interpolate positions differently.
The optimizer here is the recipe's, but for its highest rate and the length of its warm-up.
"""

from __future__ import annotations

from typing import Any

import pytest

from sslengine.config.facts import RunFacts
from sslengine.hooks.gradients import ClipGradients, FreezeParameters
from sslengine.methods.dino import DINOLoss, DINOOptions
from sslengine.models.build import build_model
from sslengine.models.options import (
    HeadOptions,
    ModelOptions,
    TrunkOptions,
    VisionTransformerOptions,
)
from tests.methods.whole_steps import RATES, fill, optimizer_of, squares, train, wave

IMAGES, CROPS, LENGTH, PER_EPOCH = 4, 4, 10, 2
OFFICIAL = [
    0.8737629896816393, 0.893772452026794, 0.9641394646705455, 0.9667900146615125,
    1.0731837004829463,
]  # fmt: skip
# Squared norms at the end: the student's trunk and head, the teacher's, the centre.
NORMS = [
    121.82512136158782, 21.696723685954886, 117.35914678652962, 21.933795684633232,
    1.2062138686104993,
]  # fmt: skip


def _made() -> Any:
    trunk = VisionTransformerOptions(
        IMAGE_SIZE=16, PATCH_SIZE=4, NUM_LAYERS=2, NUM_HEADS=2, HIDDEN_DIM=8, MLP_DIM=16,
        QKV_BIAS=True,
    )  # fmt: skip
    head = ["dino_head", {"in_dim": 8, "num_clusters": [12], "hidden_dim": 7, "bottleneck_dim": 5,
                          "normalize_last_layer": False}]  # fmt: skip
    return build_model(ModelOptions(
        TRUNK=TrunkOptions("vision_transformer", VISION_TRANSFORMERS=trunk),
        HEAD=HeadOptions(PARAMS=[head]),
    )).double()  # fmt: skip


def test_five_steps() -> None:
    model = _made().train()
    for part, prefix in ((model.trunk, "backbone"), (model.heads[0], "head")):
        named = part.named_parameters()
        fill(
            (f"{prefix}.{name.replace('prototypes0', 'last_layer')}", each) for name, each in named
        )
    options = DINOOptions(
        momentum=0.9, teacher_temp_warmup_epochs=3, output_dim=12, num_crops=CROPS
    )
    loss = DINOLoss(options, RunFacts()).double().train()
    loss.momentum_teacher.attach(model)
    steps = train(
        model, loss,
        optimizer_of("pretrain/dino/dino_16gpu_vits16", *RATES),
        [ClipGradients(0.03, 2.0, per_parameter=True),
         FreezeParameters([("heads.0.prototypes0.weight_*", PER_EPOCH)])],
        ([wave((IMAGES, 3, 16, 16), 1 + step + 3 * crop) for crop in range(CROPS)] for step in range(5)),
        LENGTH, PER_EPOCH,
    )  # fmt: skip
    assert [each["loss"].item() for each in steps] == pytest.approx(OFFICIAL, rel=1e-9)
    teacher: Any = loss.momentum_teacher.module
    ends = [
        squares(each) for each in (model.trunk, model.heads[0], teacher.trunk, teacher.heads[0])
    ]
    assert [*ends, float(loss.center.square().sum())] == pytest.approx(NORMS, rel=1e-9)
