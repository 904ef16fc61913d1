"""YAML as users have it: ours trains as it is, VISSL's with nothing but overrides."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sslengine import catalog  # noqa: F401
from sslengine.config.resolve import Resolved, resolve
from sslengine.task.task import SelfSupervisionTask
from sslengine.trainer import loop

ROOT = Path(__file__).resolve().parents[2]
VISSL = ROOT.parent / "shared" / "vissl-configs"
CPU = torch.device("cpu")

TWO_STEPS = [
    "config.OPTIMIZER.num_iterations=2",
    "config.DATA.NUM_DATALOADER_WORKERS=0",
    "config.DATA.TRAIN.DATA_LIMIT=16",
    "config.DATA.TRAIN.BATCHSIZE_PER_REPLICA=4",
]
ON_THIS_MACHINE = [
    *TWO_STEPS,
    "config.MACHINE.DEVICE=cpu",
    "config.DISTRIBUTED.NUM_NODES=1",
    "config.DISTRIBUTED.NUM_PROC_PER_NODE=1",
    "config.DATA.TRAIN.DATA_SOURCES=[synthetic]",
    "config.DATA.TRAIN.RANDOM_SYNTHETIC_IMAGES=true",
    "config.DATA.TRAIN.DEFAULT_GRAY_IMG_SIZE=40",
    "config.DATA.TRAIN.RANDOM_SYNTHETIC_LABELS=3",
    "config.TEST_MODEL=false",
]


RECIPES = sorted(
    path.relative_to(ROOT / "configs").with_suffix("").as_posix()
    for path in (ROOT / "configs" / "pretrain").rglob("*.yaml")
)


@pytest.mark.parametrize("name", RECIPES)
def test_published_recipes_pass_every_check(name: str) -> None:
    """They are for many GPUs: what a CPU can say of them is that nothing is wrong."""
    assert resolve([f"config={name}"]).config.LOSS.name


def _train(run: Resolved, folder: Path) -> SelfSupervisionTask:
    task = SelfSupervisionTask(run.config, folder, CPU, hooks=[])
    task.prepare()
    loop.run(task)
    assert task.iteration == 2
    assert all(0 < abs(loss) < 1e4 for loss in task.losses)
    return task


QUICK = sorted(path.stem for path in (ROOT / "configs" / "quickstart").glob("*.yaml"))


@pytest.mark.parametrize("name", QUICK)
def test_every_quickstart_config_trains_two_steps(name: str, tmp_path: Path) -> None:
    _train(resolve([f"config=quickstart/{name}", *TWO_STEPS]), tmp_path)


@pytest.mark.skipif(not VISSL.is_dir(), reason="VISSL's own YAML is not beside this checkout")
@pytest.mark.parametrize(
    "arguments",
    [
        ["config=pretrain/simclr/simclr_8node_resnet"],
        ["config=pretrain/simclr/simclr_4node_resnet"],
        ["config=pretrain/simclr/simclr_8node_resnet", "+config/pretrain/simclr/models=resnext101"],
        ["config=pretrain/simclr/simclr_8node_resnet", "config.MODEL.TRUNK.RESNETS.DEPTH=18",
         "config.MODEL.HEAD.PARAMS=[[mlp,{dims:[512,16]}]]"],
        ["config=pretrain/supervised/supervised_8gpu_resnet", "config.DATA.TRAIN.LABEL_SOURCES=[synthetic]"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_vissls_yaml_trains_unchanged(arguments: list[str], tmp_path: Path) -> None:
    run = resolve([*arguments, *ON_THIS_MACHINE], [str(VISSL)])
    task = _train(run, tmp_path)
    assert run.config.DISTRIBUTED.BACKEND == "gloo"
    assert task.optimizer.options_view.lr > 0


@pytest.mark.skipif(not VISSL.is_dir(), reason="VISSL's own YAML is not beside this checkout")
def test_vissls_schedule_is_scaled_to_this_machine() -> None:
    run = resolve(["config=pretrain/simclr/simclr_8node_resnet", *ON_THIS_MACHINE], [str(VISSL)])
    warmup, cosine = run.config.OPTIMIZER.param_schedulers.lr.schedulers
    # base_value 0.3 for 256 images; here 4 images.
    assert cosine.start_value == pytest.approx(0.3 * 4 / 256)
    assert warmup.end_value == cosine.start_value
    assert 0 < warmup.start_value < warmup.end_value
