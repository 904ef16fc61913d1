from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from PIL import ImageOps
from timm.data.auto_augment import AugmentOp, auto_augment_policy

from sslengine.data.augment.auto_augment import RandAugment, VisslAutoAugment
from sslengine.data.augment.pipeline import Pipeline
from tests.data.pictures import picture

EXTRAS = {"translate_const": 250, "img_mean": (128, 128, 128)}
PLAIN = [
    "AutoContrast",
    "Equalize",
    "Invert",
    "Rotate",
    "Posterize",
    "Solarize",
    "SolarizeAdd",
    "Color",
    "Contrast",
    "Brightness",
    "Sharpness",
    "ShearX",
    "ShearY",
    "TranslateXRel",
    "TranslateYRel",
]
GROWING = {"Posterize", "Solarize", "Color", "Contrast", "Brightness", "Sharpness"}


@pytest.fixture
def one_bit_at_least(monkeypatch: pytest.MonkeyPatch) -> None:
    """timm's own changes fail where they posterize to no bits at all."""
    posterize = ImageOps.posterize
    monkeypatch.setattr(ImageOps, "posterize", lambda image, bits: posterize(image, max(1, bits)))


def seed(number: int) -> None:
    random.seed(number)
    np.random.seed(number)  # noqa: NPY002


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"magnitude": 6, "num_layers": 3, "increasing_severity": True},
        {"magnitude": 9, "magnitude_std": 0.5, "num_layers": 2, "increasing_severity": True},
    ],
)
def test_rand_augment_draws_what_vissl_draws(
    arguments: dict[str, Any], one_bit_at_least: None
) -> None:
    full = {"magnitude": 10, "magnitude_std": 0, "num_layers": 2, **arguments}
    names = [
        f"{name}Increasing" if arguments.get("increasing_severity") and name in GROWING else name
        for name in PLAIN
    ]
    extras = {**EXTRAS, "magnitude_std": full["magnitude_std"]}
    changes = [AugmentOp(name, 0.5, full["magnitude"], extras) for name in names]
    image, changed = picture(0, side=24), 0
    augment = RandAugment(**arguments)
    for number in range(60):
        seed(number)
        got = augment(image)
        seed(number)
        expected = image
        for change in np.random.choice(changes, full["num_layers"], replace=True):  # noqa: NPY002
            expected = change(expected)
        assert got.tobytes() == expected.tobytes()
        changed += got.tobytes() != image.tobytes()
    assert 20 < changed < 60


@pytest.mark.parametrize("policy", ["v0", "v0r", "original", "originalr"])
def test_auto_augment_draws_what_vissl_draws(policy: str, one_bit_at_least: None) -> None:
    image, changed = picture(1, side=24), 0
    augment = VisslAutoAugment(policy, magnitude_std=0.3)
    for number in range(40):
        seed(number)
        got = augment(image)
        seed(number)
        expected = image
        for change in random.choice(auto_augment_policy(policy, {**EXTRAS, "magnitude_std": 0.3})):
            expected = change(expected)
        assert got.tobytes() == expected.tobytes()
        changed += got.tobytes() != image.tobytes()
    assert changed > 10


@pytest.mark.parametrize("increasing", [False, True])
@pytest.mark.parametrize("magnitude", [0, 10])
def test_the_least_and_the_greatest_magnitude(magnitude: int, increasing: bool) -> None:
    augment = RandAugment(magnitude, num_layers=30, increasing_severity=increasing)
    for number in range(10):
        seed(number)
        assert augment(picture(number)).size == (8, 8)


def test_vissls_rand_augment_has_the_name_that_torchvisions_has_too() -> None:
    entry = {"name": "RandAugment", "magnitude": 9, "magnitude_std": 0.5, "num_layers": 2}
    (step,) = Pipeline([entry], "here").named
    assert isinstance(step.transform, RandAugment)
