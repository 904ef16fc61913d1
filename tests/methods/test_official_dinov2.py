"""Four train steps of DINOv2, beside the authors' code.

The numbers are those of facebookresearch/dinov2 at commit b8931f7 (`SSLMetaArch`, in float64; its
Sinkhorn-Knopp computes in float32), with SGD and its schedules of momentum and temperature. Trunk and
heads have the same weights here; crops have one size, since timm and the authors interpolate positions
differently. With registers, it is one step: the authors train the class token's position apart from it.
Four more steps are with AdamW and the authors' groups of parameters: layer decay and the patch embedding's
factor, schedules of rate and decay, the gradients of trunk and head clipped separately. Their optimizer here
is the recipe's, but for its highest rate; its factors have seven digits.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sslengine.hooks.gradients import ClipGradients
from sslengine.methods.base import Step
from sslengine.methods.dinov2 import DINOv2Loss, DINOv2Options
from sslengine.methods.whole import Batch
from sslengine.models.build import build_model
from sslengine.models.options import (
    HeadOptions,
    ModelOptions,
    TrunkOptions,
    VisionTransformerOptions,
)
from sslengine.models.view_trunk import lend
from tests.methods.whole_steps import RATES, fill, optimizer_of, squares, train, wave

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


def batch(step: int) -> Batch:
    mask = ((torch.arange(2 * IMAGES * 16) * 7 + step * 3) % 5 < 2).view(2 * IMAGES, 16)
    mask[step] = False
    mask[4:6] = False
    return Batch({
        "input": [*wave((2 * IMAGES, 3, 16, 16), 1 + step).chunk(2)],
        "local_views": [*wave((LOCAL * IMAGES, 3, 16, 16), 4 + step).chunk(LOCAL)],
        "mask": mask, "patches_at": mask.flatten().nonzero().flatten(),
    })  # fmt: skip


def made(heads: int, registers: int, targets: str, **head: Any) -> tuple[Any, DINOv2Loss]:
    """The model and the method."""
    trunk = VisionTransformerOptions(
        IMAGE_SIZE=16, PATCH_SIZE=4, NUM_LAYERS=2, NUM_HEADS=2, HIDDEN_DIM=8, MLP_DIM=16,
        QKV_BIAS=True, LAYER_SCALE=0.5, REGISTER_TOKENS=registers,
    )  # fmt: skip
    given = ModelOptions(
        TRUNK=TrunkOptions("vision_transformer", VISION_TRANSFORMERS=trunk),
        HEAD=HeadOptions(PARAMS=[]),
    )
    model: Any = build_model(given)
    options = DINOv2Options(
        momentum=0.9, patch_temp_max=0.07, teacher_temp_warmup_iters=4, targets=targets,
        output_dim=12, patch_output_dim=12 * (heads - 1),
        head={"hidden_dim": 7, "bottleneck_dim": 5, **head},
    )  # fmt: skip
    loss = DINOv2Loss(options, lend(model, given)).double()
    return model.double().train(), loss.train()


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


@pytest.mark.parametrize("case", OFFICIAL, ids=["one head", "registers", "sinkhorn"])
def test_four_steps(case: tuple[int, int, str]) -> None:
    heads, registers, targets = case
    model, loss = made(heads, registers, targets)
    parts = [model.trunk, loss.student.head, loss.student.patch_head][: 1 + heads]
    for number, part in enumerate(parts):
        _fill(part, number)
    loss.teacher.attach(model)
    trained = [each for part in parts for name, each in part.named_parameters()
               if not name.endswith("weight_g")]  # fmt: skip
    optimizer = torch.optim.SGD(trained, lr=0.2)
    steps, norms = OFFICIAL[case]
    # float32 in the authors' Sinkhorn-Knopp
    close: dict[str, Any] = {"rel": 1e-5 if targets == "sinkhorn" else 1e-9}
    for number, expected in enumerate(steps):
        step = Step.alone(iteration=number, where=number / LENGTH)
        losses = loss(batch(number), step)
        found = [float(losses[name].detach()) for name in ("classes", "patches", "koleo")]
        assert found == pytest.approx(expected, **close), number
        optimizer.zero_grad()
        losses["loss"].backward()
        optimizer.step()
        loss.teacher.after_update(step)
    teacher: Any = loss.teacher.module
    found = [squares(each) for each in (model.trunk, teacher.trunk, teacher.head)]
    assert found[: len(norms)] == pytest.approx(norms, **close)


# Class tokens, patches and KoLeo of each step; the squared norms of the student's trunk and head, and
# of the teacher's, at the end.
WITH_GROUPS = (
    [[0.8437870892979953, 0.6249466296537811, 6.117019350559808],
     [0.8766565773896373, 0.647948753514151, 5.966784162771555],
     [0.9654984341758837, 0.594056716308555, 4.334317567219464],
     [1.0118653088616645, 0.6793973954893446, 4.625614967795696]],
    [121.04018901705149, 21.674437758037104, 118.65056121708618, 21.585535378167815],
)  # fmt: skip


def test_four_steps_with_the_authors_groups_and_clipping() -> None:
    model, loss = made(1, 0, "center", normalize_last_layer=False)
    for part, prefix in ((model.trunk, "backbone"), (loss.student.head, "dino_head")):
        fill((f"{prefix}.{name.replace('prototypes0', 'last_layer')}", each)
             for name, each in part.named_parameters())  # fmt: skip
    loss.teacher.attach(model)
    steps = train(
        model, loss, optimizer_of("pretrain/dinov2/dinov2_32gpu_vitl16", *RATES),
        [ClipGradients(0.3, 2.0, per_module=True)], map(batch, range(STEPS)), LENGTH,
    )  # fmt: skip
    expected, norms = WITH_GROUPS
    names = ("classes", "patches", "koleo")
    for found, each in zip(steps, expected, strict=True):
        assert [found[name].item() for name in names] == pytest.approx(each, rel=1e-8)
    teacher: Any = loss.teacher.module
    ends = (model.trunk, loss.student.head, teacher.trunk, teacher.head)
    assert [squares(each) for each in ends] == pytest.approx(norms, rel=1e-8)
