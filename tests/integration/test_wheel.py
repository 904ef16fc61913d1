"""A wheel, installed away from the checkout, runs the quickstart's config."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.command.photos import SMALL, write_photos

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
    schema = [sys.executable, "tools/config_schema.py", source / "configs" / "schema.json"]
    subprocess.run(schema, cwd=ROOT, check=True)
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--quiet"]
    subprocess.run([*command, "-w", str(folder), str(source)], check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return built


def test_the_configs_and_the_templates_are_inside(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert "sslengine/configs/quickstart/simclr.yaml" in names
    assert "sslengine/configs/base/views/shapes/pair.yaml" in names
    assert "sslengine/configs/schema.json" in names
    assert "sslengine/py.typed" in names
    for part in ("page.html.j2", "style.css", "script.js"):
        assert f"sslengine/report/templates/{part}" in names
    assert not [name for name in names if name.startswith(("tests/", "tools/", "configs/"))]


@dataclass(frozen=True)
class Installed:
    """The wheel, in a folder of modules, and an empty folder to work in."""

    site: Path
    work: Path

    def python(self, *arguments: str, seconds: float = 240) -> str:
        done = subprocess.run(
            [sys.executable, *arguments], cwd=self.work, capture_output=True, text=True,
            env={**os.environ, "PYTHONPATH": str(self.site)}, timeout=seconds, check=False,
        )  # fmt: skip
        assert done.returncode == 0, (arguments, done.stderr)
        return done.stdout

    def sslengine(self, *arguments: str, seconds: float = 240) -> str:
        return self.python("-m", "sslengine", *arguments, seconds=seconds)


@pytest.fixture
def installed(wheel: Path, tmp_path: Path) -> Installed:
    found = Installed(tmp_path / "site", tmp_path / "work")
    found.work.mkdir()
    zipfile.ZipFile(wheel).extractall(found.site)
    where = found.python("-c", "import sslengine; print(sslengine.__file__)")
    assert where.startswith(str(found.site))
    return found


def test_it_trains_from_an_empty_folder(installed: Installed) -> None:
    arguments = [
        "config=quickstart/simclr", "config.OPTIMIZER.num_iterations=2",
        "config.DATA.TRAIN.DATA_LIMIT=16", "config.DATA.TRAIN.BATCHSIZE_PER_REPLICA=8",
        "config.DATA.NUM_DATALOADER_WORKERS=1", "config.DATA.AUGMENT_BACKEND=pil",
    ]  # fmt: skip
    installed.sslengine(*arguments)
    run = "runs/quickstart/simclr"
    assert (installed.work / run / "checkpoints/checkpoint.torch").exists()
    # The verbs, of which none needs a file of the checkout.
    verbs = [("list", "recipes"), ("completion", "bash"), ("report", run), ("doctor", "--json"),
             ("make", "permutations", "--count=8", "p.npy")]  # fmt: skip
    for verb in (*verbs, ("export", run, "out", "--to=state-dict")):
        assert installed.sslengine(*verb, seconds=120), verb
    assert (installed.work / "out" / "model.safetensors").exists()


@pytest.mark.slow
def test_a_folder_with_splits_a_continued_run_and_its_scores(installed: Installed) -> None:
    """Judged is what training made of the weights, which are gone by then."""
    for split, each in (("train", 8), ("val", 4)):
        write_photos(installed.work / "photos" / split, each)
    small = ["photos", "--model=resnet10t", *SMALL]
    installed.sslengine("train", *small, "--method=simclr", "--out=first")
    continued = "--recipe=simclr/continued", "--weights=first", "--freeze-trunk=0"
    installed.sslengine("train", *small, *continued, "--out=second")
    shutil.rmtree(installed.work / "first")
    found = installed.sslengine("judge", "second", "--train=photos", "--val=photos", "--json")
    judged = json.loads(found)
    assert judged["weights"].startswith("second/checkpoints")
    assert [judged["images"][split]["images"] for split in ("TRAIN", "TEST")] == [16, 8]
