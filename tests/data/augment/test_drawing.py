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

from sslengine.data.augment.drawing import draw_of
from sslengine.data.augment.operation import Operation, Size
from sslengine.data.augment.operations import Crop, FlipLeftRight
from sslengine.data.augment.operations.blur import ImgPilGaussianBlur
from sslengine.data.augment.transforms.masking import MaskedImageModeling
from sslengine.data.augment.transforms.multicrop import ImgPilMultiCropRandomApply
from sslengine.data.augment.transforms.photometric import ImgPilRandomPhotometric
from sslengine.data.augment.transforms.rotation import ImgRotatePil
from sslengine.data.augment.view import size_of
from sslengine.data.loading.seeding import seed_sample
from tests.data.augment.lists import OtherBlur, OtherFlip, Posterize
from tests.data.augment.photos import photo

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
    tv.RandomEqualize(0.5),
    tv.RandomAdjustSharpness(1.7, 0.5),
    ImgPilRandomPhotometric(),
    tv.RandomApply([tv.ColorJitter(0.5), tv.RandomHorizontalFlip()], 0.5),
    tv.RandomApply(torch.nn.ModuleList([tv.RandomGrayscale()]), 0.5),
    tv.Compose([tv.Resize(50), tv.RandomCrop(32), tv.RandomHorizontalFlip()]),
]


def streams() -> list[float]:
    return [random.random(), np.random.rand(), float(torch.rand(1))]  # noqa: NPY002


@pytest.mark.parametrize("transform", KNOWN, ids=lambda each: str(each).partition(" object at")[0])
def test_draws_and_pixels_are_torchvisions(transform: Any) -> None:
    draw = pickle.loads(pickle.dumps(draw_of(transform)))
    for number, size in enumerate(SIZES * 3):
        image: Any = photo(number, *size)
        seed_sample(0, (0, number))
        expected, ends = transform(image), streams()
        seed_sample(0, (0, number))
        ops: list[Operation] = draw(size)
        assert streams() == ends
        for op in ops:
            size = op.size(size)
            image = op.on_pil(image)
        assert size_of(image) == size
        assert np.array_equal(np.asarray(image), np.asarray(expected))


def test_a_crop_larger_than_the_image_is_refused_as_torchvision_does() -> None:
    with pytest.raises(ValueError, match=r"crop size \(40, 40\) is larger .* \(30, 50\)"):
        draw_of(tv.RandomCrop(40))((30, 50))


@pytest.mark.parametrize(
    "transform",
    [
        tv.RandomCrop(20, padding=3),
        tv.RandomCrop(20, pad_if_needed=True),
        tv.Resize(20, max_size=30),
        tv.Grayscale(1),
        tv.RandomVerticalFlip(),
        tv.RandomPosterize(0),
        tv.RandomApply([tv.RandomVerticalFlip()]),
        tv.Compose([ImgRotatePil()]),
        tv.RandomApply([MaskedImageModeling()]),
        tv.Compose([tv.RandomHorizontalFlip(), Posterize()]),
        OtherBlur(),
        OtherFlip(),
        ImgPilMultiCropRandomApply([Posterize()], [0.5, 0.5]),
        Posterize(),
    ],
    ids=lambda transform: type(transform).__name__,
)
def test_what_is_not_known_has_no_draw(transform: Any) -> None:
    assert draw_of(transform) is None


class Corner:
    """A user's own transform that says what it does."""

    def __init__(self, side: int = 10) -> None:
        self.side = side

    def draw(self, size: Size) -> list[Operation]:
        top = int(torch.randint(size[0] - self.side, ()))
        return [Crop(top, 0, self.side, self.side, to=(self.side, self.side))]

    def __call__(self, image: Image.Image) -> Image.Image:
        (crop,) = self.draw(size_of(image))
        return crop.on_pil(image)


class BothAnew(ImgPilGaussianBlur):
    def __call__(self, image: Image.Image) -> Image.Image:
        return FlipLeftRight().on_pil(image)

    def draw(self, size: Size) -> list[Operation]:
        return [FlipLeftRight()]


def test_a_users_transform_may_have_a_draw_of_its_own() -> None:
    assert draw_of(Corner())((50, 60))[0].to == (10, 10)
    assert draw_of(BothAnew())((50, 60)) == [FlipLeftRight()]
    assert draw_of(tv.RandomApply([Corner(), BothAnew()], 1.0))((50, 60))[1] == FlipLeftRight()
