"""Train steps of DINO and iBOT, beside the authors' code."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from sslengine.config.facts import RunFacts
from sslengine.hooks.gradients import ClipGradients, FreezeParameters, clip_each
from sslengine.methods.base import Step
from sslengine.methods.dino import DINOLoss, DINOOptions
from sslengine.methods.ibot import IBOTLoss, IBOTOptions
from sslengine.models.build import build_model
from sslengine.models.options import (
    HeadOptions,
    ModelOptions,
    TrunkOptions,
    VisionTransformerOptions,
)
from sslengine.models.view_trunk import lend
from sslengine.optim.optimizers import ScaleEach
from tests.methods.test_official_dinov2 import batch
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


# ---- Six train steps of iBOT, in three epochs, beside the authors' code. The numbers are those of
# bytedance/ibot at commit da316d8 (`train_one_epoch`, `iBOTLoss`, its networks with a shared
# head and its groups of parameters, in float64): AdamW with schedules of rate and weight
# decay, each gradient clipped at 0.2, the last layer frozen for an epoch, temperatures that
# rise for three, the teacher's momentum from 0.9. Crops have one size, since timm and the
# authors interpolate positions differently.


STEPS, PER_EPOCH_IBOT, CLIP = 6, 2, 0.2
# Class tokens and patches of each step.
OFFICIAL_IBOT = [
    [0.87891616488808, 0.48535342265379056],
    [0.9277104377294507, 0.5224545924077951],
    [0.9288424252900179, 0.47667935878706474],
    [0.9993722900959717, 0.4992213187082531],
    [1.1361805109118126, 0.6994515330774135],
    [1.1910774884225797, 0.7458935885590223],
]
# Squared norms at the end: the student's trunk and head, the teacher's, both centres.
NORMS_IBOT = [
    120.46651859805041, 21.04197274498779, 116.80837143245756, 21.877205841054597,
    1.5846227579631609, 1.5833648462080512,
]  # fmt: skip


def _made_ibot(options: IBOTOptions) -> tuple[Any, IBOTLoss]:
    """The model and the method."""
    trunk = VisionTransformerOptions(
        IMAGE_SIZE=16, PATCH_SIZE=4, NUM_LAYERS=2, NUM_HEADS=2, HIDDEN_DIM=8, MLP_DIM=16,
        QKV_BIAS=True,
    )  # fmt: skip
    given = ModelOptions(
        TRUNK=TrunkOptions("vision_transformer", VISION_TRANSFORMERS=trunk),
        HEAD=HeadOptions(PARAMS=[]),
    )
    model: Any = build_model(given)
    loss = IBOTLoss(options, lend(model, given)).double().train()
    return model.double().train(), loss


@torch.no_grad()
def _filled(model: Any, head: Any) -> dict[str, torch.nn.Parameter]:
    """With the weights that the authors' code was run with, by its names."""
    named = {}
    for part, prefix in ((model.trunk, "backbone."), (head, "head.")):
        for name, parameter in part.named_parameters():
            name = name.replace("prototypes0.", "last_layer.").replace("mask_token", "masked_embed")
            named[prefix + name] = parameter
    fill(named.items())
    return named


def _along_a_cosine(start: float, end: float, done: int, length: int) -> float:
    return end + (start - end) * (1 + math.cos(math.pi * done / length)) / 2


def test_six_steps() -> None:
    options = IBOTOptions(
        momentum=0.9,
        teacher_temp_max=0.07,
        patch_temp_min=0.05,
        patch_temp_max=0.09,
        teacher_temp_warmup_epochs=3,
        patch_weight=0.7,
        output_dim=12,
        head={"hidden_dim": 7, "bottleneck_dim": 5, "normalize_last_layer": False},
    )
    model, loss = _made_ibot(options)
    named = _filled(model, loss.student.head)
    loss.teacher.attach(model)
    plain = [each for name, each in named.items() if name.endswith(".bias") or each.ndim == 1]
    decayed = [each for each in named.values() if not any(each is other for other in plain)]
    optimizer = torch.optim.AdamW([{"params": decayed}, {"params": plain, "weight_decay": 0.0}])
    for number, expected in enumerate(OFFICIAL_IBOT):
        step = Step.alone(iteration=number, epoch=number // PER_EPOCH_IBOT, where=number / STEPS)
        for group in optimizer.param_groups:  # two steps of warm-up
            rate = 0.02 * number if number < 2 else _along_a_cosine(0.02, 0.001, number - 2, 4)
            group["lr"] = rate
        optimizer.param_groups[0]["weight_decay"] = _along_a_cosine(0.04, 0.4, number, STEPS)
        losses = loss(batch(number), step)
        found = [float(losses[name].detach()) for name in ("classes", "patches")]
        assert found == pytest.approx([expected[0], expected[1] / 0.7], rel=1e-9), number
        optimizer.zero_grad()
        losses["loss"].backward()
        clip_each(
            [each.grad for each in named.values() if each.grad is not None], CLIP, ScaleEach()
        )
        if step.epoch == 0:
            for name, each in named.items():
                each.grad = None if "last_layer" in name else each.grad
        optimizer.step()
        loss.teacher.after_update(step)
    teacher: Any = loss.teacher.module
    parts: Any = [model.trunk, loss.student.head, teacher.trunk.trunk, teacher.head]
    teacher.trunk.trunk.mask_token.data.zero_()  # theirs has none
    found = [
        sum(float(each.detach().square().sum()) for each in part.parameters()) for part in parts
    ]
    found += [float(each.center.square().sum()) for each in (loss.class_center, loss.patch_center)]
    assert found == pytest.approx(NORMS_IBOT, rel=1e-9)
