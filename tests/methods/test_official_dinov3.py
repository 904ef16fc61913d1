"""Four train steps of DINOv3, beside the authors' code.

The numbers are those of facebookresearch/dinov3 at commit 6876159 (`SSLMetaArch` with its trunk, heads and
groups of parameters, and the steps of `do_train`, in float64): rotary positions and registers, crops of
two sizes, two heads, Sinkhorn-Knopp, KoLeo, Gram anchoring to a network that sees larger crops and is
replaced after two updates; AdamW with layer decay and the patch embedding's factor, schedules of rate and
decay, the gradients of trunk and heads clipped separately. The optimizer here is the recipe's, but for its
highest rate; its factors have seven digits.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from sslengine.config.facts import RunFacts
from sslengine.distributed.ranks import rank, world_size
from sslengine.hooks.gradients import ClipGradients
from sslengine.methods.base import Step
from sslengine.methods.dinov3 import DINOv3Loss, DINOv3Options
from sslengine.methods.whole import Batch
from sslengine.models.build import build_model
from sslengine.models.options import HeadOptions, ModelOptions, TimmOptions, TrunkOptions
from sslengine.models.view_trunk import lend
from tests.methods.whole_steps import RATES, fill, optimizer_of, squares, train, wave
from tests.ranks import RankPool

IMAGES, LOCAL, LENGTH = 4, 2, 10
# The total, class tokens of local crops and of global ones, KoLeo, patches and Gram of each step.
OFFICIAL = [
    [9.719723911104296, 5.110397147850566, 5.088456337926326, 2.1436446990692586,
     3.1448935732283694, 0.5215089267597954],
    [9.196031859635468, 5.117511247821661, 5.081324331185855, 2.4257966746601936,
     3.1220306962790856, 0.24169644307397498],
    [7.117732064638, 4.572353738471577, 4.541164646586937, 1.9058518656497365,
     2.079200188498057, 0.04770206424998328],
    [6.349998337857385, 4.214587029177919, 4.207426544102646, 2.199878699827708,
     1.6642502052338934, 0.01678609591922733],
]  # fmt: skip
# Squared norms at the end: the student's trunk and heads, the teacher's trunk and first head, and
# the Gram teacher's trunk.
NORMS = [
    317.50510375299507, 12.101802752868325, 12.61868555547129, 314.1582301191116,
    12.222611094654809, 314.010595320666,
]  # fmt: skip


NAMES = {
    "reg_token": "storage_tokens", "gamma_1": "ls1.gamma", "gamma_2": "ls2.gamma",
    "prototypes0": "last_layer",
}  # fmt: skip


def _named(part: Any, prefix: str) -> list[tuple[str, Tensor]]:
    found = []
    for name, parameter in part.named_parameters():
        for ours, theirs in NAMES.items():
            name = name.replace(ours, theirs)
        found.append((f"{prefix}.{name}", parameter))
    return found


def _batch(step: int, mine: slice = slice(None)) -> Batch:
    mask = ((torch.arange(2 * IMAGES * 16) * 7 + step * 3) % 5 < 2).view(2 * IMAGES, 16)
    mask[step] = False
    mask[4:6] = False
    mask = mask.view(2, IMAGES, 4, 4)[:, mine].flatten(0, 1)
    large = [*wave((2, IMAGES, 3, 32, 32), 1 + step)[:, mine]]
    return Batch({
        "input": [each[..., ::2, ::2].contiguous() for each in large], "gram_views": large,
        "local_views": [*wave((LOCAL, IMAGES, 3, 8, 8), 4 + step)[:, mine]],
        "mask": mask, "patches_at": mask.flatten().nonzero().flatten(),
    })  # fmt: skip


def _made(**changes: Any) -> tuple[Any, DINOv3Loss]:
    arguments = {"img_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 2, "num_heads": 2,
                 "mlp_ratio": 2.0, "init_values": 0.5, "num_reg_tokens": 2}  # fmt: skip
    trunk = TimmOptions(model="vit_small_patch16_dinov3", arguments=arguments)
    given = ModelOptions(TRUNK=TrunkOptions("timm", TIMM=trunk), HEAD=HeadOptions(PARAMS=[]))
    model: Any = build_model(given)
    options = DINOv3Options(
        momentum=0.9, momentum_schedule="cosine", teacher_temp_warmup_iters=4, gram_weight=2.0,
        gram_refresh=2, gram_refreshes=1, output_dim=12, patch_output_dim=12,
        head={"hidden_dim": 7, "bottleneck_dim": 5, "normalize_last_layer": False,
              "weight_norm": False}, **changes,
    )  # fmt: skip
    loss = DINOv3Loss(options, lend(model, given), RunFacts()).double().train()
    model = model.double().train()
    for part, prefix in zip(
        _parts(model, loss), ("backbone", "dino_head", "ibot_head"), strict=True
    ):
        fill(_named(part, prefix))
    loss.teacher.attach(model)
    fill([(name.replace("backbone", "gram"), each)
          for name, each in _named(loss.gram.trunk, "backbone")])  # fmt: skip
    return model, loss


def _parts(model: Any, loss: DINOv3Loss) -> list[Any]:
    return [model.trunk, loss.student.head, loss.student.patch_head]


def test_four_steps() -> None:
    model, loss = _made()
    recipe = "pretrain/dinov3/dinov3_32gpu_vitl16"
    steps = train(
        model, loss, optimizer_of(recipe, *RATES),
        [ClipGradients(0.3, 2.0, per_module=True)], map(_batch, range(4)), LENGTH,
    )  # fmt: skip
    for found, (total, local, across, koleo, patches, gram) in zip(steps, OFFICIAL, strict=True):
        expected = {"loss": total, "classes": (4 * local + 2 * across) / 6, "koleo": 2 * koleo,
                    "patches": patches, "gram": gram}  # fmt: skip
        assert {name: found[name].item() for name in expected} == pytest.approx(expected, rel=1e-8)
    teacher: Any = loss.teacher.module
    ends = (*_parts(model, loss), teacher.trunk, teacher.head, loss.gram.trunk)
    assert [squares(each) for each in ends] == pytest.approx(NORMS, rel=1e-8)


# ---- several ranks


def _on_rank() -> tuple[dict[str, Tensor], list[Tensor]]:
    """The first step of this rank's images."""
    model, loss = _made(koleo_over_ranks=True)
    share = IMAGES // world_size()
    losses = loss(_batch(0, slice(rank() * share, (rank() + 1) * share)), Step.alone())
    trained = [each for part in _parts(model, loss) for each in part.parameters()]
    gradients = list(torch.autograd.grad(losses["loss"], trained))
    return {name: each.detach() for name, each in losses.items()}, gradients


@pytest.mark.parametrize("pool", [2, pytest.param(4, marks=pytest.mark.slow)], indirect=True)
def test_ranks_are_one_process(pool: RankPool) -> None:
    losses, gradients = _on_rank()
    made = pool.run(_on_rank)
    for name in ("loss", "classes", "patches", "koleo", "gram"):
        mean = torch.stack([each[name] for each, _ in made]).mean()
        torch.testing.assert_close(mean, losses[name], rtol=1e-9, atol=1e-12)
    for number, gradient in enumerate(gradients):
        mean = torch.stack([each[number] for _, each in made]).mean(0)
        torch.testing.assert_close(mean, gradient, rtol=1e-7, atol=1e-10)
