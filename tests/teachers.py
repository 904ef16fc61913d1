"""What recipes need in addition, to be run in tests: a trained teacher."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path

import timm
import torch

from sslengine.config.sections import read
from sslengine.config.show import show
from sslengine.models.build import build_model
from sslengine.models.options import ModelOptions
from sslengine.models.weights.state import model_state
from tests.config.recipes import resolved

WIDTH = 96  # of the feature of timm's test_resnet
SCORES = 8
OF_DISTILLATION = "LOSS.distillation_loss.teacher"


def needed(name: str) -> tuple[str, ...]:
    """Overrides for the recipe of this name."""
    if name != "distillation":
        return ()
    return (
        f"config.{OF_DISTILLATION}.timm=test_resnet",
        f"config.{OF_DISTILLATION}.weights={weights_of_timms()}",
    )


def with_scores() -> tuple[str, ...]:
    """The same, by the scores of the teacher's head."""
    return (
        f"config.{OF_DISTILLATION}.weights={run_with_scores()}",
        "config.LOSS.distillation_loss.form=kl",
    )


@cache
def run_with_scores() -> Path:
    """The folder of a run whose weights are those at its start; its head has SCORES scores."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    run = resolved()
    (folder / "config.yaml").write_text(show(run))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = build_model(read(run.config, ModelOptions))
    state = {"base_model": model_state(model), "loss": {}, "networks": {}}
    (folder / "checkpoints").mkdir()
    torch.save({"classy_state_dict": state}, folder / "checkpoints" / "checkpoint.torch")
    return folder


@cache
def weights_of_timms(network: str = "test_resnet") -> Path:
    """A file that timm wrote."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        torch.save(timm.create_model(network, num_classes=7).state_dict(), folder / "w.pth")
    return folder / "w.pth"
