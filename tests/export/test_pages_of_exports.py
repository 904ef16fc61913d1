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
import timm
import torch
from numpy.typing import NDArray
from PIL import Image
from torchvision import transforms
from torchvision.transforms import CenterCrop

import sslengine
from sslengine.command.front import main
from sslengine.data.decode.decoding import Decoder
from sslengine.errors import ExportError
from sslengine.export.formats import prepare
from sslengine.export.image_code import opening, view_code
from sslengine.export.subject import describe
from tests.command.photos import SMALL
from tests.data.decode.test_decoding import encode
from tests.data.deep_files import numbers
from tests.export.subjects import MEAN, STD, subject, timm_vit
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


# ---- Preprocessing of an export, as timm says it and as the code of its page does


TAIL: list[dict[str, Any]] = [
    {"name": "ToTensor"},
    {"name": "Normalize", "mean": MEAN, "std": STD},
]


@pytest.mark.parametrize(
    ("head", "crop_pct"),
    [
        ([{"name": "Resize", "size": 256}, {"name": "CenterCrop", "size": 224}], 0.875),
        ([{"name": "Resize", "size": 118, "interpolation": 3},
          {"name": "CenterCrop", "size": 96}], 96 / 118.5),
        ([{"name": "Resize", "size": [40, 40]}], 1.0),
        ([{"name": "Resize", "size": 32}, {"name": "CenterCrop", "size": [32, 32]}], 1.0),
    ],
)  # fmt: skip
def test_timm_makes_the_same_pixels(head: list[dict[str, Any]], crop_pct: float) -> None:
    given = describe([*head, *TAIL], "", 3)
    assert given.timm_differs() == ""
    assert given.crop_pct == pytest.approx(crop_pct)
    assert given.size is not None
    data: Any = timm.data
    theirs = data.create_transform(
        (3, *given.size), crop_pct=given.crop_pct, crop_mode=given.crop_mode, mean=given.mean,
        std=given.std, interpolation=given.interpolation,
    )  # fmt: skip
    ours = transforms.Compose([
        getattr(transforms, entry["name"])(**{k: v for k, v in entry.items() if k != "name"})
        for entry in [*head, *TAIL]
    ])  # fmt: skip
    pixels = np.random.default_rng(0).integers(0, 256, (131, 173, 3), dtype=np.uint8)
    picture = Image.fromarray(pixels)
    torch.testing.assert_close(theirs(picture), ours(picture), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("entries", "why"),
    [
        ([{"name": "RandomCrop", "size": 8}, *TAIL], "RandomCrop is among the transforms"),
        ([{"name": "ToTensor"}, {"name": "Resize", "size": 8}], "in the order ToTensor, Resize"),
        ([{"name": "Resize", "size": 8, "max_size": 9}, *TAIL], "Resize has max_size"),
        ([{"name": "CenterCrop", "size": 8}, *TAIL], "images are not resized"),
        ([{"name": "Resize", "size": 9}, {"name": "CenterCrop", "size": [8, 4]}, *TAIL],
         "crops squares"),
        ([{"name": "Resize", "size": 8}], "there is no ToTensor"),
    ],
)  # fmt: skip
def test_what_timm_cannot_say_is_said(entries: list[dict[str, Any]], why: str) -> None:
    assert why in describe(entries, "", 3).timm_differs()


def test_one_number_is_for_all_bands() -> None:
    given = describe(
        [{"name": "ToTensor"}, {"name": "Normalize", "mean": [0.5], "std": [2]}], "", 4
    )
    assert (given.mean, given.std) == ([0.5] * 4, [2.0] * 4)
    assert describe([{"name": "ToTensor"}], "", 2).std == [1.0, 1.0]


# ---- The lines of pages that crop pictures, beside torchvision's CenterCrop, and that read them.


SIDES = range(17, 49)  # smaller and larger than the crop


@pytest.mark.parametrize("crop", [[32, 32], [24, 40]])
def test_all_margins_are_cropped_and_padded_as_torchvision_does(crop: list[int]) -> None:
    """Half of an odd margin is rounded in another way where pixels are added."""
    view = [{"name": "CenterCrop", "size": crop}, {"name": "ToTensor"}]
    given = subject(timm_vit(img_size=crop), DATA__TEST__TRANSFORMS=view)
    found: dict[str, Any] = {}
    exec(view_code(given), found)
    draw = np.random.default_rng(0)
    for side in SIDES:
        for shape in ((side, 48), (48, side), (side, 65 - side)):
            picture = Image.fromarray(draw.integers(1, 256, (*shape, 3), dtype=np.uint8))
            wanted = np.asarray(CenterCrop(crop)(picture))
            np.testing.assert_array_equal(found["view"](picture), wanted, f"{shape}")


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("given", ["drop", "white", "#2060a0"])
def test_a_page_shows_the_same_through_transparent_pixels(
    given: str, mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    keys = {
        "DATA__TRAIN__TRANSPARENT": given, "DATA__TRAIN__IMAGE_MODE": mode,
        "DATA__TRAIN__DATA_SOURCES": ["disk_folder"], "DATA__TRAIN__RANDOM_SYNTHETIC_IMAGES": False,
    }  # fmt: skip
    plain = subject(timm_vit(), 3 if mode == "RGB" else 1, **keys)
    decoder = Decoder.build(plain.image_options, "TRAIN")
    image = Image.fromarray(numbers((16, 16, 4), np.uint8), "RGBA")
    for each in (image, image.convert("LA"), image.convert("RGB").quantize(8), image.convert("L")):
        encoded = encode(each, **({"transparency": 3} if each.mode == "P" else {}))
        Path("image.png").write_bytes(encoded)
        found: dict[str, Any] = {}
        exec(opening(plain), found)
        np.testing.assert_array_equal(np.asarray(found["image"]), np.asarray(decoder(encoded)))


@pytest.mark.parametrize(
    ("changes", "why"),
    [({"DATA__TRAIN__PIXEL_RANGE": [0, 4000]}, "PIXEL_RANGE [0, 4000] brings images to 8 bits"),
     ({"DATA__TRAIN__IMAGE_MODE": "stored"}, "images are arrays with the values of their files")],
)  # fmt: skip
def test_a_page_has_no_transform_of_other_images_than_pictures(
    changes: dict[str, Any], why: str
) -> None:
    keys = {"DATA__TRAIN__DATA_SOURCES": ["disk_folder"],
            "DATA__TRAIN__RANDOM_SYNTHETIC_IMAGES": False}  # fmt: skip
    made = prepare(subject(timm_vit(), **keys, **changes), "timm")
    assert (why in made.usage, made.example) == (True, "")
    assert made.facts["transform_differs"] == why
