"""The first epoch of DINOv2 and DINOv3, in which their last layers stay, and the steps after it.

The authors set the rate of the last layers to 0 (facebookresearch/dinov2 b8931f7 and dinov3 6876159,
train/train.py): AdamW then neither moves nor decays them, but its moments follow their gradients, which
count in the norm of the head that is clipped. In DINO and iBOT (7c446df, da316d8: utils.py) they have no
gradient instead, and their moments start afterwards.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from sslengine import catalog  # noqa: F401
from sslengine.config.resolve import resolve
from sslengine.distributed.ranks import rank, world_size
from sslengine.engine import loop
from sslengine.engine.services import Services
from sslengine.engine.task import SelfSupervisionTask
from sslengine.hooks.default import default_hooks
from sslengine.hooks.events import Hook
from sslengine.methods.teacher import Teacher
from tests.engine.runs import CPU
from tests.methods.resuming import KeepState, flat
from tests.ranks import RankPool

# Two epochs of three steps; of each image two crops of 16 pixels and two of 8.
STEPS, FROZEN, RATE, DECAY, CLIP = 6, 3, 0.01, 0.1, 0.05
HEAD = "{hidden_dim:8,bottleneck_dim:8}"
TINY = [
    *(f"config.DATA.TRAIN.{each}" for each in (
        "DATA_SOURCES=[synthetic]", "DATA_PATHS=[]", "RANDOM_SYNTHETIC_IMAGES=true", "DATA_LIMIT=12",
        "TRANSFORMS.0.total_num_crops=4", "TRANSFORMS.0.num_crops=[2,2]",
        "TRANSFORMS.0.size_crops=[16,8]", "TRANSFORMS.3.prob=[1.0,0.1,0.5,0.5]",
        "TRANSFORMS.4.prob=[0.0,0.2,0.0,0.0]",
    )),
    "config.MODEL.TRUNK.TIMM.arguments={img_size:16,patch_size:4,embed_dim:16,depth:1,num_heads:2,"
    "dynamic_img_size:true,global_pool:token}",
    "config.DATA.NUM_DATALOADER_WORKERS=0", "config.MACHINE.DEVICE=cpu", "config.HOOKS.COLLAPSE_SIGNS=false",
    "config.OPTIMIZER.num_epochs=2", f"config.MODEL.GRAD_CLIP.MAX_NORM={CLIP}",
    "config.OPTIMIZER.param_schedulers.lr.auto_lr_scaling.auto_scale=false",
    f"config.OPTIMIZER.param_schedulers.lr={{name:constant,value:{RATE}}}",
    f"config.OPTIMIZER.weight_decay={DECAY}", "config.OPTIMIZER.non_regularized_parameters=[]",
    "config.OPTIMIZER.regularize_bn=true", "config.OPTIMIZER.regularize_bias=true",
]  # fmt: skip


def _task(method: str, folder: Path, before: list[Hook], after: list[Hook]) -> SelfSupervisionTask:
    """Of the recipe for photos, with its hooks between the given ones."""
    more = [f"config.DATA.TRAIN.BATCHSIZE_PER_REPLICA={4 // world_size()}"]
    if method == "dino":
        more.append(
            f"config.MODEL.HEAD.PARAMS=[[dino_head,{HEAD[:-1]},in_dim:16,num_clusters:[6]}}]]"
        )
    else:
        more += [f"config.LOSS.{method}_loss.{each}" for each in (f"head={HEAD}", "output_dim=6")]
        more += [f"config.LOSS.{method}_loss.patch_output_dim=6"] * (method != "ibot")
    more.append("config.MODEL.TRUNK.TIMM.model=vit_small_patch16_224" if method == "dino" else
                "config.DATA.TRAIN.COLLATE_FUNCTION_PARAMS.patch_size=4")  # fmt: skip
    more.append(f"config.DISTRIBUTED.NUM_PROC_PER_NODE={world_size()}")
    config = resolve([f"config=photos/{method}", *TINY, *more]).config
    hooks = [*before, *default_hooks(config, folder), *after]
    task = SelfSupervisionTask(config, folder, CPU, hooks=hooks, services=Services())
    task.prepare()
    return task


class Steps(Hook):
    """The gradients of each step before any hook; where parameters are, and the teacher's."""

    def __init__(self) -> None:
        self.gradients: list[dict[str, Tensor]] = []
        self.points: list[dict[str, Tensor]] = []
        self.teachers: list[dict[str, Tensor]] = []

    def on_start(self, task: Any) -> None:
        self.points.append({name: each.detach().clone() for name, each in _trained(task)})
        (teacher,) = (each.module for each in task.loss.modules() if isinstance(each, Teacher))
        self.teachers.append({n: each.detach().clone() for n, each in teacher.named_parameters()})

    on_update = on_start

    def on_backward(self, task: Any) -> None:
        given = {name: each.grad for name, each in _trained(task)}
        self.gradients.append({name: grad.clone() for name, grad in given.items()})


def _trained(task: Any) -> list[tuple[str, nn.Parameter]]:
    return [(name, each) for name, each in task.learner.named_parameters() if each.requires_grad]


def _is_last(name: str) -> bool:
    return "prototypes" in name


def _by_hand(steps: Steps, by_rate: bool) -> list[dict[str, Tensor]]:
    """Where AdamW, as the authors run it, takes the parameters by these gradients."""
    mine = {name: nn.Parameter(each.clone()) for name, each in steps.points[0].items()}
    optimizer = torch.optim.AdamW([
        {"params": [each for name, each in mine.items() if _is_last(name) == last], "last": last}
        for last in (False, True)
    ], lr=RATE, weight_decay=DECAY)  # fmt: skip
    found = []
    for step, gradients in enumerate(steps.gradients):
        for name, each in mine.items():
            each.grad = gradients[name].clone()
        if by_rate:
            for module in ("trunk.", "loss.student.head.", "loss.student.patch_head."):
                clip_grad_norm_(
                    [each for name, each in mine.items() if name.startswith(module)], CLIP
                )
        for name, each in () if by_rate else mine.items():
            clip_grad_norm_([each], CLIP)
            if step < FROZEN and _is_last(name):
                each.grad = None
        for group in optimizer.param_groups:
            group["lr"] = 0.0 if by_rate and step < FROZEN and group["last"] else RATE
        optimizer.step()
        found.append({name: each.detach().clone() for name, each in mine.items()})
    return found


@pytest.mark.parametrize("method", ["dinov2", "dinov3", "dino", "ibot"])
def test_steps_are_those_of_the_authors_optimizer(method: str, tmp_path: Path) -> None:
    steps = Steps()
    loop.run(_task(method, tmp_path, [steps], []))
    assert len(steps.gradients) == STEPS
    expected = _by_hand(steps, by_rate=method in ("dinov2", "dinov3"))
    for ours, theirs in zip(steps.points[1:], expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)
    for points in (steps.points, steps.teachers):  # the teacher has followed nothing that moved
        lasts = [name for name in points[0] if _is_last(name)]
        same = [all(torch.equal(each[name], points[0][name]) for name in lasts) for each in points]
        assert same == [True] * (1 + FROZEN) + [False] * (STEPS - FROZEN)


def _resumed_alike(folder: Path) -> bool:
    """Is a run that resumes after two of the three frozen steps the one that never stopped?"""
    folder = folder / str(rank())
    keep, again = KeepState(after=2), KeepState(after=-1)
    whole = _task("dinov2", folder / "whole", [], [keep])
    loop.run(whole)
    assert len(keep.state["optimizer"]["state"]) == len(_trained(whole))  # of the frozen ones too
    resumed = _task("dinov2", folder / "resumed", [], [again])
    resumed.set_classy_state(keep.state)
    loop.run(resumed)
    one, two = flat(whole.get_classy_state()), flat(resumed.get_classy_state())
    assert one.keys() == two.keys()
    return all(
        torch.equal(value, two[key]) if torch.is_tensor(value) else value == two[key]
        for key, value in one.items()
    )


def test_resumed_among_the_frozen_steps(two_ranks: RankPool, tmp_path: Path) -> None:
    assert _resumed_alike(tmp_path)
    assert two_ranks.run(_resumed_alike, tmp_path) == [True, True]
