from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageFilter, ImageOps
from torchvision.transforms import ColorJitter
from torchvision.transforms import functional as F

from sslengine.data.augment.operations.blur import ImgPilGaussianBlur
from sslengine.data.augment.operations.solarize import ImgPilRandomSolarize
from sslengine.data.augment.transforms.jitter import ImgPilColorDistortion, ImgPilRandomColorJitter
from sslengine.data.augment.transforms.photometric import ImgPilRandomPhotometric
from tests.data.pictures import picture

Change = Callable[[Image.Image], Image.Image]
IMAGE = picture(0, side=32)


def seed(number: int) -> None:
    random.seed(number)
    np.random.seed(number)  # noqa: NPY002
    torch.manual_seed(number)


def agree(change: Change, expected: Change) -> None:
    """Equal pixels, and equally much drawn, over many seeds; both outcomes of every chance seen."""
    changed = 0
    for number in range(40):
        seed(number)
        got = change(IMAGE)
        drawn = random.random(), np.random.rand(), torch.rand(1)  # noqa: NPY002
        seed(number)
        assert got.tobytes() == expected(IMAGE).tobytes()
        assert drawn == (random.random(), np.random.rand(), torch.rand(1))  # noqa: NPY002
        changed += got.tobytes() != IMAGE.tobytes()
    assert 0 < changed < 40


def blur(image: Image.Image) -> Image.Image:
    if np.random.rand() <= 0.4:  # noqa: NPY002
        return image.filter(ImageFilter.GaussianBlur(random.uniform(0.5, 3.0)))
    return image


def solarize(image: Image.Image) -> Image.Image:
    return ImageOps.solarize(image, int(np.random.randint(0, 257)))  # noqa: NPY002


def maybe_solarize(image: Image.Image) -> Image.Image:
    return image if torch.rand(1) > 0.3 else solarize(image)


def photometric(image: Image.Image) -> Image.Image:
    if torch.rand(1) > 0.66:
        return image
    image = ImageOps.posterize(image, int(np.random.randint(4, 9)))  # noqa: NPY002
    image = ImageEnhance.Sharpness(image).enhance(np.random.uniform(0.1, 1.9))  # noqa: NPY002
    return ImageOps.autocontrast(solarize(image))


def jitter(image: Image.Image) -> Image.Image:
    """SimCLR's, of strength one half, from torchvision's functions."""
    if torch.rand(1) <= 0.8:
        order, *factors = ColorJitter.get_params((0.6, 1.4), (0.6, 1.4), (0.6, 1.4), (-0.1, 0.1))
        steps = (F.adjust_brightness, F.adjust_contrast, F.adjust_saturation, F.adjust_hue)
        for number in order:
            image = steps[number](image, factors[number])
    return image


def distort(image: Image.Image) -> Image.Image:
    image = jitter(image)
    if torch.rand(1) < 0.2:
        return image.convert("L").convert("RGB")
    return image


def test_blur() -> None:
    agree(ImgPilGaussianBlur(p=0.4, radius_min=0.5, radius_max=3.0), blur)


def test_solarize() -> None:
    agree(ImgPilRandomSolarize(p=0.3), maybe_solarize)


def test_solarize_from_a_given_threshold_on() -> None:
    """As BYOL, Barlow Twins, VICReg and DINO: Pillow's default is 128."""
    agree(
        ImgPilRandomSolarize(p=0.3, threshold=128),
        lambda image: image if torch.rand(1) > 0.3 else ImageOps.solarize(image),
    )
    with pytest.raises(ValueError, match="threshold: expected a number from 0 to 256, got 300"):
        ImgPilRandomSolarize(threshold=300)


def test_photometric() -> None:
    agree(ImgPilRandomPhotometric(), photometric)


def test_distortion() -> None:
    agree(ImgPilColorDistortion(strength=0.5), distort)


def test_jitter() -> None:
    agree(ImgPilRandomColorJitter(strength=0.5), jitter)


def test_distortion_heeds_all_its_arguments() -> None:
    off = {"brightness": 0, "contrast": 0, "saturation": 0, "hue": 0}
    always_grey = ImgPilColorDistortion(**off, grayscale_probability=1.0)
    assert always_grey(IMAGE).tobytes() == IMAGE.convert("L").convert("RGB").tobytes()
    nothing = ImgPilColorDistortion(color_jitter_probability=0.0, grayscale_probability=0.0)
    assert all(nothing(IMAGE).tobytes() == IMAGE.tobytes() for _ in range(20))


def test_certain_and_impossible() -> None:
    never, always = ImgPilGaussianBlur(p=0.0), ImgPilGaussianBlur(1.0, 1.0, 1.0)
    expected = IMAGE.filter(ImageFilter.GaussianBlur(1.0)).tobytes()
    for _ in range(20):
        assert never(IMAGE).tobytes() == IMAGE.tobytes()
        assert always(IMAGE).tobytes() == expected


@pytest.mark.parametrize(
    "kind",
    [ImgPilGaussianBlur, ImgPilRandomSolarize, ImgPilRandomPhotometric, ImgPilRandomColorJitter],
)
def test_a_probability_is_one(kind: type) -> None:
    with pytest.raises(ValueError, match=r"between 0 and 1; got 1.5"):
        kind(p=1.5)
