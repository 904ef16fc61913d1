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
from sslengine.models.build import build_model
from sslengine.models.options import HeadOptions, ModelOptions, TimmOptions, TrunkOptions
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


def _made() -> Any:
    arguments = {"img_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 2, "num_heads": 2,
                 "mlp_ratio": 2.0, "init_values": 0.5, "num_reg_tokens": 2}  # fmt: skip
    trunk = TimmOptions(model="vit_small_patch16_dinov3", arguments=arguments)
    head = ["dino_head", {"in_dim": 16, "num_clusters": [12], "hidden_dim": 7, "bottleneck_dim": 5,
                          "normalize_last_layer": False, "weight_norm": False}]  # fmt: skip
    features = {"feat_names": ["lastCLS", "lastPATCH", "lastCLS", "lastBLK"],
                "head_index": [0, 1, 2, 2], "additional_keys": ["mask", "patches_at"]}  # fmt: skip
    return build_model(ModelOptions(
        TRUNK=TrunkOptions("timm", TIMM=trunk),
        HEAD=HeadOptions(PARAMS=[head, head, ["identity", {}]]),
        MULTI_INPUT_HEAD_MAPPING=[["global_views", features],
                                  ["local_views", {"feat_names": ["lastCLS"], "head_index": 0}]],
    )).double()  # fmt: skip


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


def _batch(step: int) -> dict[str, Tensor]:
    mask = ((torch.arange(2 * IMAGES * 16) * 7 + step * 3) % 5 < 2).view(2 * IMAGES, 16)
    mask[step] = False
    mask[4:6] = False
    large = wave((2 * IMAGES, 3, 32, 32), 1 + step)
    return {
        "global_views": large[..., ::2, ::2].contiguous(), "gram_views": large,
        "local_views": wave((LOCAL * IMAGES, 3, 8, 8), 4 + step),
        "mask": mask.view(-1, 4, 4), "patches_at": mask.flatten().nonzero().flatten(),
    }  # fmt: skip


def _with_loss(**changes: Any) -> tuple[Any, DINOv3Loss]:
    model = _made().train()
    for part, prefix in zip((model.trunk, *model.heads), ("backbone", "dino_head", "ibot_head", ""), strict=True):  # fmt: skip
        fill(_named(part, prefix))
    options = DINOv3Options(
        momentum=0.9, momentum_schedule="cosine", teacher_temp_warmup_iters=4, gram_weight=2.0,
        gram_refresh=2, gram_refreshes=1, output_dim=12, patch_output_dim=12, num_crops=2 + LOCAL,
        **changes,
    )  # fmt: skip
    loss = DINOv3Loss(options, RunFacts()).double().train()
    loss.attach(model)
    loss.teacher.attach(model)
    fill([(name.replace("backbone", "gram"), each)
          for name, each in _named(loss.gram.trunk, "backbone")])  # fmt: skip
    return model, loss


def test_four_steps() -> None:
    model, loss = _with_loss()
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
    ends = (model.trunk, model.heads[0], model.heads[1], teacher.trunk, teacher.heads[0],
            loss.gram.trunk)  # fmt: skip
    assert [squares(each) for each in ends] == pytest.approx(NORMS, rel=1e-8)


# ---- several ranks


def _on_rank() -> tuple[dict[str, Tensor], list[Tensor]]:
    """The first step of this rank's images."""
    model, loss = _with_loss(koleo_over_ranks=True)
    share = IMAGES // world_size()
    mine = slice(rank() * share, (rank() + 1) * share)
    inputs = {name: each.unflatten(0, (-1, IMAGES))[:, mine].flatten(0, 1)
              for name, each in _batch(0).items() if name != "patches_at"}  # fmt: skip
    inputs["patches_at"] = inputs["mask"].flatten().nonzero().flatten()
    losses = loss(model(inputs), {"input": inputs}, Step.alone())
    trained = [each for each in model.parameters() if each.requires_grad]
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
