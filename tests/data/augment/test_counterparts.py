from __future__ import annotations

import pickle
import random
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms as tv
from torchvision.transforms import InterpolationMode

from sslengine.data.augment.geometry import flip
from sslengine.data.augment.image import Rgb, make_rgb
from sslengine.data.augment.levels import ImgPilRandomPhotometric
from sslengine.data.augment.pipeline import Pipeline, adapt
from sslengine.data.augment.transform import OnPil, Transform
from sslengine.data.seeding import seed_sample
from tests.data.augment.lists import OtherBlur, OtherFlip, Posterize
from tests.data.augment.photos import photo
from tests.data.augment.planes import compile_or_skip

SIZES = [(60, 75), (75, 60), (40, 40), (33, 120), (1, 1), (300, 3), (31, 32)]
KNOWN = [
    tv.RandomResizedCrop(24),
    tv.RandomResizedCrop([20, 30], (0.5, 1.0), (0.9, 1.1), InterpolationMode.BICUBIC),
    tv.RandomResizedCrop(16, interpolation=InterpolationMode.NEAREST),
    tv.Resize(20),
    tv.Resize([37], InterpolationMode.LANCZOS),
    tv.Resize((18, 29)),
    tv.CenterCrop(32),
    tv.CenterCrop((31, 20)),
    tv.RandomHorizontalFlip(0.4),
    tv.ColorJitter(0.4, 0.4, 0.2, 0.1),
    tv.ColorJitter(contrast=(0.5, 0.6), hue=(0.1, 0.3)),
    tv.RandomGrayscale(0.5),
    tv.Grayscale(3),
    tv.RandomSolarize(100, 0.5),
    tv.RandomSolarize(127.5, 1.0),
    tv.RandomPosterize(3, 0.5),
    tv.RandomInvert(0.5),
    tv.RandomAutocontrast(0.5),
    tv.RandomAdjustSharpness(1.7, 0.5),
    ImgPilRandomPhotometric(),
    tv.RandomApply([tv.ColorJitter(0.5), tv.RandomHorizontalFlip()], 0.5),
    tv.RandomApply(torch.nn.ModuleList([tv.RandomGrayscale()]), 0.5),
    tv.Compose([tv.Resize(50), tv.RandomCrop(32), tv.RandomHorizontalFlip()]),
]


def streams() -> list[float]:
    return [random.random(), np.random.rand(), float(torch.rand(1))]  # noqa: NPY002


@pytest.mark.parametrize("transform", KNOWN, ids=lambda each: str(each).partition(" object at")[0])
@pytest.mark.parametrize("take", [lambda image: image, make_rgb], ids=["pil", "array"])
def test_draws_and_pixels_are_torchvisions(transform: Any, take: Any) -> None:
    if take is make_rgb:
        compile_or_skip()
    ours = pickle.loads(pickle.dumps(adapt(transform)))
    assert not isinstance(ours, OnPil)
    for number, size in enumerate(SIZES * 3):
        image: Any = photo(number, *size)
        seed_sample(0, (0, number))
        expected, ends = transform(image), streams()
        seed_sample(0, (0, number))
        made = ours(take(image))
        assert streams() == ends
        assert np.array_equal(np.asarray(made), np.asarray(expected))


@pytest.mark.parametrize(
    "other", [torch.rand(3, 40, 50), photo(0).convert("L")], ids=["tensor", "grey"]
)
def test_what_is_no_rgb_image_goes_to_torchvision(other: Any) -> None:
    transform = tv.Compose([tv.RandomResizedCrop(24), tv.RandomHorizontalFlip(0.5)])
    torch.manual_seed(3)
    expected = transform(other)
    torch.manual_seed(3)
    made = adapt(transform)(other)
    assert type(made) is type(expected)
    assert np.array_equal(np.asarray(made), np.asarray(expected))


@pytest.mark.parametrize(
    "transform",
    [
        tv.RandomCrop(20, padding=3),
        tv.RandomCrop(20, pad_if_needed=True),
        tv.Resize(20, max_size=30),
        tv.Grayscale(1),
        tv.RandomVerticalFlip(),
        tv.RandomPosterize(0),
        OtherBlur(),
        OtherFlip(),
        Posterize(),
    ],
    ids=lambda transform: type(transform).__name__,
)
def test_what_is_not_known_gets_pil_images(transform: Any) -> None:
    assert isinstance(adapt(transform), OnPil)


class Upright(Transform):
    """A user's own that takes images of any kind."""

    takes_arrays = True

    def __call__(self, image: Any) -> Any:
        return flip(image)


class Inherits(Upright):
    """Changes nothing that its base says."""


class Changes(Upright):
    def __call__(self, image: Image.Image) -> Any:
        return super().__call__(image.convert("L").convert("RGB"))


def test_who_takes_arrays_says_so_beside_its_call() -> None:
    compile_or_skip()
    image = photo(0)
    for kind in (Upright, Inherits):
        assert isinstance(adapt(kind()), kind)
        assert type(adapt(kind())(make_rgb(image))) is Rgb
    changed = adapt(Changes())
    assert isinstance(changed, OnPil)
    assert np.array_equal(np.asarray(changed(make_rgb(image))), np.asarray(Changes()(image)))


def test_limits_reach_what_a_transform_applies() -> None:
    values = np.array([[[0.0, 100.0]]], np.float32)
    entries = [{"name": "Compose", "transforms": [{"name": "RandomInvert", "p": 1.0}]}]
    (inverting, _) = Pipeline(entries, "here", limits=(0.0, 400.0)).steps
    assert inverting.transform(values).tolist() == [[[400.0, 300.0]]]
