"""The published distillation, at a small width: by features, and by scores as its head says."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch

from sslengine import catalog  # noqa: F401
from sslengine.config.resolve import resolve
from sslengine.engine import loop
from sslengine.engine.services import Services
from sslengine.engine.task import SelfSupervisionTask
from sslengine.engines.train import train
from tests.engines.runs import make_run
from tests.integration.command import ROOT
from tests.teachers import needed

RECIPE = "pretrain/distillation/distillation_8gpu_vitb14"
VIT = "IMAGE_SIZE=28 NUM_LAYERS=1 NUM_HEADS=2 HIDDEN_DIM=16 MLP_DIM=16"
SMALL = [
    *(f"config.MODEL.TRUNK.VISION_TRANSFORMERS.{each}" for each in VIT.split()),
    *(f"config.DATA.TRAIN.{each}" for each in (
        "DATA_SOURCES=[synthetic]", "RANDOM_SYNTHETIC_IMAGES=true", "DATA_LIMIT=8",
        "BATCHSIZE_PER_REPLICA=4", "TRANSFORMS.0.size=28",
    )),
    "config.DATA.NUM_DATALOADER_WORKERS=0", "config.OPTIMIZER.num_epochs=1",
    "config.DISTRIBUTED.NUM_PROC_PER_NODE=1", "config.DISTRIBUTED.BACKEND=gloo",
    "config.MACHINE.DEVICE=cpu", "config.MODEL.CHANNELS_LAST=false",
    "config.LOSS.distillation_loss.teacher.arguments.dynamic_img_size=null",
]  # fmt: skip


def by_scores(run: Path) -> list[str]:
    """What the head of the recipe says, with this teacher, whose head has 8 scores."""
    text = (ROOT / "configs" / f"{RECIPE}.yaml").read_text()
    (command,) = re.findall(r"^#     (config\.LOSS.*\\\n#.*\\\n#.*)$", text, re.MULTILINE)
    said = shlex.split(command.replace("\\\n#", " "))
    head = "config.MODEL.HEAD.PARAMS=[[dino_head,{in_dim:16,num_clusters:[8],hidden_dim:8}]]"
    return [*said, head, f"config.LOSS.distillation_loss.teacher.weights={run}"]


@pytest.mark.parametrize("form", ["mse", "kl"])
def test_it_learns(form: str, tmp_path: Path) -> None:
    if form == "kl":
        few: dict[str, Any] = {
            "DATA__TRAIN__DATA_LIMIT": 4,
            "DATA__TRAIN__BATCHSIZE_PER_REPLICA": 2,
        }
        assert train(make_run(tmp_path, OPTIMIZER__num_epochs=1, **few))
    teacher = by_scores(tmp_path) if form == "kl" else needed("distillation")
    config = resolve([f"config={RECIPE}", *SMALL, *teacher]).config
    assert config.LOSS.distillation_loss.form == form
    cpu = torch.device("cpu")
    task = SelfSupervisionTask(config, tmp_path / "run", cpu, hooks=[], services=Services())
    task.prepare()
    loop.run(task)
    assert task.iteration == 2
    assert all(0 < loss < 1e3 for loss in task.losses)
