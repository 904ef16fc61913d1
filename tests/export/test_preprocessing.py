"""What single images go through, in timm's words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from torchvision import transforms

from sslengine.export.preprocessing import describe
from tests.export.subjects import MEAN, STD

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
    assert given.with_timm() == ""
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
    assert why in describe(entries, "", 3).with_timm()


def test_one_number_is_for_all_bands() -> None:
    given = describe(
        [{"name": "ToTensor"}, {"name": "Normalize", "mean": [0.5], "std": [2]}], "", 4
    )
    assert (given.mean, given.std) == ([0.5] * 4, [2.0] * 4)
    assert describe([{"name": "ToTensor"}], "", 2).std == [1.0, 1.0]
