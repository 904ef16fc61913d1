"""Preprocessing of an export, as timm says it and as the code of its page does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from torchvision import transforms
from torchvision.transforms import CenterCrop

from sslengine.data.decode.decoding import Decoder
from sslengine.export.formats import prepare
from sslengine.export.image_code import opening, view_code
from sslengine.export.subject import describe
from tests.data.decode.test_decoding import encode
from tests.data.deep_files import numbers
from tests.export.subjects import MEAN, STD, subject, timm_vit

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
