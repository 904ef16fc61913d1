"""Four train steps of DINOv2, beside the authors' code.

The numbers are those of facebookresearch/dinov2 at commit b8931f7 (`SSLMetaArch`, in float64; its
Sinkhorn-Knopp computes in float32), with SGD and its schedules of momentum and temperature. Trunk and
heads have the same weights here; crops have one size, since timm and the authors interpolate positions
differently. With registers, it is one step: the authors train the class token's position apart from it.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from sslengine.config.facts import RunFacts
from sslengine.methods.base import Step
from sslengine.methods.dinov2 import DINOv2Loss, DINOv2Options
from sslengine.models.build import build_model
from sslengine.models.options import (
    HeadOptions,
    ModelOptions,
    TrunkOptions,
    VisionTransformerOptions,
)

IMAGES, LOCAL, STEPS, LENGTH = 4, 2, 4, 10
# One head for class tokens and patches, or two; registers; targets. Then class tokens, patches and
# KoLeo of each step, and the squared norms of the student's and the teacher's trunk and of the
# teacher's first head at the end.
OFFICIAL: dict[tuple[int, int, str], tuple[list[list[float]], list[float]]] = {
    (1, 0, "center"): (
        [[2.279545900325041, 1.451034249652121, 10.73762018866682],
         [1.7645143069287839, 1.557034297139048, 3.4271226052334685],
         [4.40060738947958, 1.9085708033604178, 4.468347171719456],
         [0.4934426668832813, 0.8878899944508346, 5.99575735904173]],
        [121.3339570102515, 119.68745654732726, 22.53169487547808],
    ),
    (2, 2, "center"): (
        [[2.278988895945594, 0.7094914377857054, 10.883554976523676]],
        [],
    ),
    (2, 0, "sinkhorn"): (
        [[2.537187980519805, 3.965847137689628, 10.73762018866682],
         [2.744843276513868, 5.136882271471869, 4.344483351010364],
         [2.8230881126584397, 4.092402371481459, 4.5027994936711675],
         [2.940442179959378, 3.9050846571488838, 5.743974882898458]],
        [121.98733867994358, 119.98356926660233, 21.970438486904428],
    ),
}  # fmt: skip


def wave(shape: tuple[int, ...], number: int) -> Tensor:
    """Values that any machine computes."""
    steps = torch.arange(math.prod(shape), dtype=torch.float64)
    return torch.sin(steps * (0.37 + 0.11 * number) + number).view(shape)


def batch(step: int) -> dict[str, Tensor]:
    mask = ((torch.arange(2 * IMAGES * 16) * 7 + step * 3) % 5 < 2).view(2 * IMAGES, 16)
    mask[step] = False
    mask[4:6] = False
    return {
        "global_views": wave((2 * IMAGES, 3, 16, 16), 1 + step),
        "local_views": wave((LOCAL * IMAGES, 3, 16, 16), 4 + step),
        "mask": mask,
        "patches_at": mask.flatten().nonzero().flatten(),
    }


def made(heads: int, registers: int) -> Any:
    head = ["dino_head", {"in_dim": 8, "num_clusters": [12], "hidden_dim": 7, "bottleneck_dim": 5}]
    features = {"feat_names": ["lastCLS", "lastPATCH", "lastCLS"], "head_index": [0, heads - 1, heads],
                "additional_keys": ["mask", "patches_at"]}  # fmt: skip
    trunk = VisionTransformerOptions(
        IMAGE_SIZE=16, PATCH_SIZE=4, NUM_LAYERS=2, NUM_HEADS=2, HIDDEN_DIM=8, MLP_DIM=16,
        QKV_BIAS=True, LAYER_SCALE=0.5, REGISTER_TOKENS=registers,
    )  # fmt: skip
    model: Any = build_model(ModelOptions(
        TRUNK=TrunkOptions("vision_transformer", VISION_TRANSFORMERS=trunk),
        HEAD=HeadOptions(PARAMS=[*[head] * heads, ["identity", {}]]),
        MULTI_INPUT_HEAD_MAPPING=[["global_views", features],
                                  ["local_views", {"feat_names": ["lastCLS"], "head_index": 0}]],
    )).double()  # fmt: skip
    for number, part in enumerate([model.trunk, *model.heads]):
        _fill(part, number)
    return model


@torch.no_grad()
def _fill(part: Any, number: int) -> None:
    """By the authors' names of the parameters."""
    positions = None
    for name, parameter in part.named_parameters():
        name = name.replace("prototypes0.", "last_layer.").replace("reg_token", "register_tokens")
        if name.endswith("weight_g"):
            continue
        shape = tuple(parameter.shape)
        if name == "pos_embed" and getattr(part, "reg_token", None) is not None:
            shape = (1, shape[1] + 1, shape[2])  # theirs has one for the class token
        scale = 1.0 if "norm" in name and name.endswith("weight") else 0.0
        value = 0.3 * wave(shape, sum(map(ord, name)) % 17 + number) + scale
        if shape != parameter.shape:
            positions, value = value[:, :1], value[:, 1:]
        parameter.copy_(value)
    if positions is not None:
        part.cls_token.add_(positions)


def _squares(part: Any) -> float:
    return sum(float(each.detach().square().sum()) for each in part.parameters())


@pytest.mark.parametrize("case", OFFICIAL, ids=["one head", "registers", "sinkhorn"])
def test_four_steps(case: tuple[int, int, str]) -> None:
    heads, registers, targets = case
    model = made(heads, registers).train()
    options = DINOv2Options(
        momentum=0.9, patch_temp_max=0.07, teacher_temp_warmup_iters=4, targets=targets,
        output_dim=12, patch_output_dim=12, num_crops=2 + LOCAL,
    )  # fmt: skip
    loss = DINOv2Loss(options, RunFacts()).double().train()
    loss.teacher.attach(model)
    trained = [each for name, each in model.named_parameters() if not name.endswith("weight_g")]
    optimizer = torch.optim.SGD(trained, lr=0.2)
    steps, norms = OFFICIAL[case]
    # float32 in the authors' Sinkhorn-Knopp
    close: dict[str, Any] = {"rel": 1e-5 if targets == "sinkhorn" else 1e-9}
    for number, expected in enumerate(steps):
        step = Step.alone(iteration=number, where=number / LENGTH)
        inputs = batch(number)
        losses = loss(model(inputs), {"input": inputs}, step)
        found = [float(losses[name].detach()) for name in ("classes", "patches", "koleo")]
        assert found == pytest.approx(expected, **close), number
        optimizer.zero_grad()
        losses["loss"].backward()
        optimizer.step()
        loss.teacher.after_update(step)
    teacher: Any = loss.teacher.module
    found = [_squares(each) for each in (model.trunk, teacher.trunk, teacher.heads[0])]
    assert found[: len(norms)] == pytest.approx(norms, **close)
