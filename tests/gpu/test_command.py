"""The command on a GPU: a run that is killed and resumed, and what the other verbs make of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.command.photos import write_photos
from tests.gpu.place import IS_CUDA, needs_a_gpu
from tests.integration.command import same_weights

pytestmark = [*needs_a_gpu, pytest.mark.timeout(400)]

COMMAND = [sys.executable, "-m", "sslengine"]
DEVICE = "gpu" if IS_CUDA else "cpu"
# With kernels that give the same bits again.
TRAIN = [
    "--method=simclr", "--model=resnet10t", "--size=64", "--epochs=12", "--batch-size=8",
    "--workers=2", "--val=0.25", f"--device={DEVICE}", "--set=LOG_FREQUENCY=1",
    "--set=REPRODUCIBILITY.CUDDN_DETERMINISTIC=True", "--set=CHECKPOINT.CHECKPOINT_ITER_FREQUENCY=5",
]  # fmt: skip


def run(*arguments: object) -> str:
    done = subprocess.run(
        [*COMMAND, *map(str, arguments)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_photos(tmp_path_factory.mktemp("photos"), each=16)


@pytest.fixture(scope="module")
def whole(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "whole"
    run("train", photos, *TRAIN, "--out", out)
    return out


def test_killed_and_resumed(photos: Path, whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "cut"
    command = [*COMMAND, "train", str(photos), *TRAIN, "--out", str(out)]
    process = subprocess.Popen(command, start_new_session=True)
    saved = out / "checkpoints" / "model_iteration10.torch"
    try:
        while not saved.exists():
            assert process.poll() is None
            time.sleep(0.01)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert "resumed from" in run("train", photos, *TRAIN, "--out", out)
    assert same_weights(out, whole)


def test_judge(whole: Path) -> None:
    """Brightness tells the classes apart."""
    run("judge", whole, f"--device={DEVICE}", "--workers=0")
    trained = json.loads((whole / "evaluation.json").read_text())["scores"][0]
    assert trained["linear"] == trained["knn"]["20"] == 100


def test_features_are_those_of_a_cpu(photos: Path, whole: Path, tmp_path: Path) -> None:
    made = []
    for number, device in enumerate((DEVICE, "cpu")):
        out = tmp_path / f"{number}.npy"
        run("embed", whole, photos, f"--device={device}", "--workers=0", "--out", out)
        made.append(np.load(out))
    cosines = torch.cosine_similarity(*map(torch.from_numpy, made))
    assert len(cosines) == 32
    assert cosines.min() > 0.999


def test_predict(photos: Path, whole: Path) -> None:
    image = photos / "dark" / "0.png"
    (found,) = json.loads(run("predict", whole, image, "--json", f"--device={DEVICE}"))["images"]
    assert np.isfinite(found["features"]).all()
    assert found["nearest"]


def test_weights_open_in_timm(whole: Path) -> None:
    import timm

    network = timm.create_model(f"local-dir:{whole / 'weights'}", pretrained=True)
    assert network(torch.zeros(1, 3, 64, 64)).isfinite().all()
