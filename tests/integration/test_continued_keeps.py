"""Training that continues from a good trunk, on other images, at batch 64, loses nothing there."""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch
from PIL import Image
from rich.console import Console
from torch import Tensor

from sslengine.config.resolve import resolve
from sslengine.data.sources.array_file import read_idx
from sslengine.data.sources.generated import class_of, draw_shape
from sslengine.engines.run import Run
from sslengine.engines.train import train_task
from sslengine.evaluate.knn import knn_within
from sslengine.python.train import load

JUDGED = 2000
FASHION = Path("/usr/share/datasets/fashion-mnist")
OTHERS = {
    "upright": ["config.DATA.TRAIN.DATA_SOURCES=[upright_shapes]"],
    "fashion": ["config.DATA.TRAIN.DATA_SOURCES=[array_file]",
                f"config.DATA.TRAIN.DATA_PATHS=[{FASHION}/train-images-idx3-ubyte.gz]"],
}  # fmt: skip
# The rate of configs/photos: 0.0005 of heads, 0.0001 of the trunk.
CONTINUED = ["+config/forms=continued", "config.OPTIMIZER.param_schedulers.lr.peak=0.0005",
             "config.DATA.TRAIN.BATCHSIZE_PER_REPLICA=64",
             "config.DATA.TRAIN.DATA_LIMIT=2560", "config.OPTIMIZER.num_epochs=3"]  # fmt: skip

OF_TRANSFORMERS = [
    "+config/base/model=vit_48_conv",
    "config.MODEL.TRUNK.VISION_TRANSFORMERS.IMAGE_SIZE=32",
]
SIMCLR_OF_TRANSFORMERS = [
    "config.DATA.TRAIN.TRANSFORMS.1.size=32", "config.DATA.TRAIN.BATCHSIZE_PER_REPLICA=64",
    "config.MODEL.HEAD.PARAMS=[[mlp,{dims:[auto,128],use_relu:True,skip_last_layer_relu_bn:False}],"
    "[mlp,{dims:[128,128]}]]",
    "config.OPTIMIZER.num_epochs=10", "config.OPTIMIZER.weight_decay=0.05",
    "config.OPTIMIZER.param_schedulers.lr.schedulers=[{name:linear,start_value:0.0,end_value:0.001},"
    "{name:cosine,start_value:0.001,end_value:0.0}]",
]  # fmt: skip


def trained(folder: Path, *arguments: str) -> Path:
    folder.mkdir()
    given = [*arguments, "config.DATA.NUM_DATALOADER_WORKERS=0", f"config.CHECKPOINT.DIR={folder}"]
    train_task(Run(resolve(given), folder, torch.device("cpu"), Console(file=io.StringIO())))
    return folder


def continued(folder: Path, method: str, good: Path, *arguments: str) -> Path:
    weights = f"config.MODEL.WEIGHTS_INIT.PARAMS_FILE={good}/checkpoints/checkpoint.torch"
    return trained(folder, f"config=quickstart/{method}", *CONTINUED, *arguments, weights)


def pictures(of: str) -> tuple[Iterable[Image.Image], Tensor]:
    """Test images and their labels."""
    if of == "fashion":
        images, labels = (read_idx(FASHION / f"t10k-{kind}-ubyte.gz")[:JUDGED]
                          for kind in ("images-idx3", "labels-idx1"))  # fmt: skip
        return (Image.fromarray(each).convert("RGB") for each in images), torch.tensor(labels)
    drawn = (
        Image.fromarray(draw_shape("TEST", index, 48, upright=True)) for index in range(JUDGED)
    )
    return drawn, torch.tensor([class_of(index) for index in range(JUDGED)])


@torch.no_grad()
def knn(run: Path, of: str) -> float:
    """k = 20, each image among all others."""
    trunk, (images, labels) = load(run), pictures(of)
    views = torch.stack([trunk.transform(each) for each in images])
    rows = torch.cat([trunk(some) for some in views.split(250)])
    return knn_within(rows, labels.long(), [20])[20][0]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("good") / "run"
    return trained(folder, "config=quickstart/simclr", "config.OPTIMIZER.num_epochs=8")


@pytest.fixture(scope="module")
def good_transformer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("good_transformer") / "run"
    return trained(folder, "config=quickstart/simclr", *OF_TRANSFORMERS, *SIMCLR_OF_TRANSFORMERS)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("of", OTHERS)
@pytest.mark.parametrize("method", ["dino", "byol", "simclr", "moco", "swav"])
def test_no_more_than_a_point_is_lost(method: str, of: str, good: Path, tmp_path: Path) -> None:
    if of == "fashion" and not FASHION.is_dir():
        pytest.skip("Debian's dataset-fashion-mnist is not installed")
    before = knn(good, of)
    run = continued(tmp_path / "run", method, good, *OTHERS[of])
    assert before > (70 if of == "fashion" else 50)  # untrained: 62 and 28
    assert knn(run, of) >= before - 1


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("method", ["dinov2", "ibot", "msn"])
def test_nor_by_a_transformer(method: str, good_transformer: Path, tmp_path: Path) -> None:
    before = knn(good_transformer, "upright")
    crops = "config.DATA.TRAIN.TRANSFORMS.0.size_crops=[32,16]"
    arguments = [*OF_TRANSFORMERS, crops, *OTHERS["upright"], "config.OPTIMIZER.num_epochs=10"]
    run = continued(tmp_path / "run", method, good_transformer, *arguments)
    assert before > 50  # untrained: 19
    assert knn(run, "upright") >= before - 1
