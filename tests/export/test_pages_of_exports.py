"""The page of an export, read by a newcomer: its lines run in a new process without sslengine."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

import sslengine
from sslengine.command.front import main
from sslengine.errors import ExportError
from tests.command.photos import SMALL
from tests.tail import slow_but

# Which libraries a format's page imports.
NEEDS = {"onnx": ("onnxruntime", "onnxscript"), "hf-dinov2": ("transformers",)}
_CALL = """
import sys
sys.modules["sslengine"] = None
{lines}
import numpy
features = features.detach() if hasattr(features, "detach") else features
numpy.save("features.npy", numpy.asarray(features))
"""


# The run resizes them to 37 x 39 and crops 32 x 32: half of a margin of 7 is 3 or 4 by library.
def _pixels(kind: str, draw: np.random.Generator) -> NDArray[Any]:
    if kind == "deep":
        return draw.integers(100, 4000, (64, 68), dtype=np.uint16)
    return draw.integers(0, 256, (64, 68, 3), dtype=np.uint8)


def write_images(folder: Path, kind: str) -> Path:
    """By another program; returns one of them."""
    draw = np.random.default_rng(0)
    folder.mkdir(parents=True)
    for number in range(16):
        path = folder / f"{number}.png"
        Image.fromarray(_pixels(kind, draw)).save(path)
    return path


def train_on(place: Path, kind: str, *more: str, model: str = "resnet18") -> tuple[Path, Path]:
    """The run, and one of its images."""
    image = write_images(place / "images", kind)
    given = ["--method=simclr", f"--model={model}", *SMALL, f"--out={place / 'run'}", *more]
    assert main(["train", str(image.parent), *given]) == 0
    return place / "run", image


def read_page(folder: Path, image: Path) -> NDArray[Any]:
    """What its code computes of the image, which lies where the page looks for it."""
    shutil.copy(image, folder.parent / "image.png")
    blocks = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", _CALL.format(lines="".join(blocks))], cwd=folder.parent,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    (features,) = np.load(folder.parent / "features.npy")
    return np.asarray(features)


@torch.no_grad()
def expected(run: Path, image: Path) -> NDArray[Any]:
    """The features of sslengine.load."""
    backbone = sslengine.load(run).eval()
    return backbone(backbone.transform(Image.open(image))[None])[0].numpy()


def exported(run: Path, to: str, *overrides: str) -> tuple[Path, dict[str, Any]]:
    for name in NEEDS.get(to, ()):
        pytest.importorskip(name)
    out = run.parent / f"made-{to}"
    if not out.exists():
        sslengine.export(run, out, to=to, overrides=overrides)
    return out, json.loads((out / "manifest.json").read_text())


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Path]]:
    made: dict[str, tuple[Path, Path]] = {}

    def of(kind: str) -> tuple[Path, Path]:
        if kind not in made:
            model = "vit_tiny_patch16_224" if kind == "vit" else "resnet18"
            made[kind] = train_on(tmp_path_factory.mktemp("trained"), kind, model=model)
        return made[kind]

    return of


@pytest.mark.parametrize(
    ("kind", "to"),
    slow_but(
        [("rgb", "torchvision")],
        [*(("rgb", to) for to in ("timm", "torchvision", "onnx", "pt2")), ("vit", "hf-dinov2"),
         ("vit", "timm"), ("vit", "pt2")],
    ),
)  # fmt: skip
def test_a_page_computes_the_features_of_an_image(
    kind: str, to: str, trained: Callable[[str], tuple[Path, Path]]
) -> None:
    run, image = trained(kind)
    out, _ = exported(run, to)
    np.testing.assert_allclose(read_page(out, image), expected(run, image), atol=1e-4)


@pytest.mark.slow
def test_images_that_are_gone(tmp_path: Path) -> None:
    """How many bits they had is then known from the config, or is not guessed."""
    tail = "--set=DATA.TEST.TRANSFORMS=[{name: Resize, size: [32, 32]}, {name: ToTensor}"
    norm = "{name: Normalize, mean: [0.5], std: [0.5]}"
    run, image = train_on(tmp_path, "deep", f"{tail}, {norm}]")
    moved = image.parent.rename(tmp_path / "moved")
    without = "config.DATA.TRAIN.PIXEL_RANGE=''"
    with pytest.raises(ExportError, match="PIXEL_MEAN is not known"):
        sslengine.export(run, tmp_path / "none", to="detectron2", overrides=[without])
    for name, more, why in (
        ("gone", [without], "8 bits is not known"),
        ("limits", [], "more than 8 bits"),
        ("images", [without, f"config.DATA.TRAIN.DATA_PATHS=[{moved}]"], "more than 8 bits"),
    ):
        out = tmp_path / name
        sslengine.export(run, out, to="onnx", overrides=more)
        said = json.loads((out / "manifest.json").read_text())
        assert {each for each in said["files"] if each.endswith(".onnx")} == {"model.onnx"}
        assert why in said["no_input_of_pixels"]
        assert said["no_input_of_pixels"] in (out / "README.md").read_text()


class Settings(SimpleNamespace):
    """detectron2's config, as far as the page goes: what is not there yet is made."""

    def __getattr__(self, name: str) -> Any:
        setattr(self, name, Settings())
        return getattr(self, name)


def settings_of(page: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    theirs: Any = ModuleType("detectron2.config")
    theirs.get_cfg = Settings
    monkeypatch.setitem(sys.modules, "detectron2", ModuleType("detectron2"))
    monkeypatch.setitem(sys.modules, "detectron2.config", theirs)
    shown: dict[str, Any] = {}
    exec(page.split("```python\n")[1].split("```")[0], shown)
    return shown["cfg"].MODEL


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["deep", "rgb"])
def test_detectron2_normalises_the_values_that_it_gets(
    kind: str, trained: Callable[[str], tuple[Path, Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An image of the view's size: (value - PIXEL_MEAN) / PIXEL_STD is what the trunk takes."""
    run, _ = trained(kind)
    out, _ = exported(run, "detectron2")
    page = (out / "README.md").read_text()
    model = settings_of(page, monkeypatch)
    assert (model.RESNETS.DEPTH, model.RESNETS.RES2_OUT_CHANNELS) == (18, 64)
    constant = np.full_like(_pixels(kind, np.random.default_rng(0)), 200)  # resizing keeps it
    given = Image.fromarray(constant) if kind == "rgb" else constant
    taken = sslengine.load(run).transform(given)[:, 0, 0].numpy()
    mean, std = np.array(model.PIXEL_MEAN), np.array(model.PIXEL_STD)
    np.testing.assert_allclose((200 - mean) / std, taken, rtol=1e-4, atol=1e-4)
    assert ('cfg.INPUT.FORMAT = "RGB"' in page) == (kind == "rgb")
    assert ("your own mapper" in page) == (kind != "rgb")
