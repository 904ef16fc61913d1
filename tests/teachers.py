"""What recipes need in addition, to be run in tests: a trained teacher."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path

import timm
import torch

WIDTH = 96  # of the feature of timm's test_resnet
OF_DISTILLATION = "LOSS.distillation_loss.teacher"


def needed(name: str) -> tuple[str, ...]:
    """Overrides for the recipe of this name."""
    if name != "distillation":
        return ()
    return (
        f"config.{OF_DISTILLATION}.timm=test_resnet",
        f"config.{OF_DISTILLATION}.weights={weights_of_timms()}",
        f"config.MODEL.HEAD.PARAMS=[[mlp,{{dims:[auto,{WIDTH}]}}]]",
    )


@cache
def weights_of_timms(network: str = "test_resnet") -> Path:
    """A file that timm wrote."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        torch.save(timm.create_model(network, num_classes=7).state_dict(), folder / "w.pth")
    return folder / "w.pth"
