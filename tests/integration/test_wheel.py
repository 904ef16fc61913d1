"""A wheel, installed away from the checkout, runs the quickstart's config."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    # From a copy: building leaves folders behind.
    for name in ("sslengine", "configs", "setup.py", "pyproject.toml", "README.md"):
        target = source / name
        target.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["cp", "-r", str(ROOT / name), str(target)], check=True)
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--quiet"]
    subprocess.run([*command, "-w", str(folder), str(source)], check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return built


def test_the_configs_are_inside(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert "sslengine/configs/quickstart/simclr.yaml" in names
    assert "sslengine/configs/base/views/shapes/pair.yaml" in names
    assert "sslengine/configs/schema.json" in names
    assert "sslengine/py.typed" in names
    assert not [name for name in names if name.startswith(("tests/", "tools/", "configs/"))]


def test_it_trains_from_an_empty_folder(wheel: Path, tmp_path: Path) -> None:
    site, work = tmp_path / "site", tmp_path / "work"
    work.mkdir()
    zipfile.ZipFile(wheel).extractall(site)
    arguments = [
        "config=quickstart/simclr", "config.OPTIMIZER.num_iterations=2",
        "config.DATA.TRAIN.DATA_LIMIT=16", "config.DATA.TRAIN.BATCHSIZE_PER_REPLICA=8",
        "config.DATA.NUM_DATALOADER_WORKERS=1", "config.DATA.AUGMENT_BACKEND=pil",
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(site)}
    where = subprocess.run(
        [sys.executable, "-c", "import sslengine; print(sslengine.__file__)"],
        cwd=work, env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert where.stdout.startswith(str(site))
    done = subprocess.run(
        [sys.executable, "-m", "sslengine", *arguments],
        cwd=work, env=environment, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    run = "runs/quickstart/simclr"
    assert (work / run / "checkpoints/checkpoint.torch").exists()
    # The verbs, of which none needs a file of the checkout.
    verbs = [("list", "recipes"), ("completion", "bash"), ("report", run), ("doctor", "--json"),
             ("make", "permutations", "--count=8", "p.npy")]  # fmt: skip
    for verb, *given in (*verbs, ("export", run, "out", "--to=state-dict")):
        done = subprocess.run(
            [sys.executable, "-m", "sslengine", verb, *given],
            cwd=work, env=environment, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 0, (verb, done.stderr)
        assert done.stdout, verb
    assert (work / "out" / "model.safetensors").exists()
