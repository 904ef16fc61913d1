"""Colours and levels by chance, under VISSL's names; colour kernels beside Pillow: no byte differs."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageFilter, ImageOps
from torchvision.transforms import ColorJitter
from torchvision.transforms import functional as F

from sslengine.data.augment import colour
from sslengine.data.augment.blur import ImgPilGaussianBlur
from sslengine.data.augment.colour import (
    ImgPilColorDistortion,
    ImgPilRandomColorJitter,
    change_brightness,
    change_contrast,
    change_saturation,
    make_grey,
    turn_hue,
)
from sslengine.data.augment.levels import ImgPilRandomPhotometric, ImgPilRandomSolarize
from tests.data.augment.planes import (
    Operation,
    Pixels,
    by_kernel,
    by_pillow,
    every_colour,
    noise,
)
from tests.data.pictures import picture

# ---- kernels beside Pillow

FACTORS = [0.0, 0.2, 0.63, 1.0, 1.37, 1.8, 3.0]


def expect_equal(operation: Operation, planes: Pixels, changes: bool = True) -> None:
    expected = by_pillow(operation, planes)
    assert (expected != planes).any() or not changes
    assert (by_kernel(operation, planes) == expected).all()


@pytest.mark.parametrize("factor", FACTORS)
def test_brightness(factor: float) -> None:
    levels = np.arange(3 * 256, dtype=np.int64).astype(np.uint8).reshape(3, 1, 256)
    expect_equal(partial(change_brightness, factor=factor), levels, factor != 1)


@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize("low", range(0, 256, 25))
def test_contrast(factor: float, low: int) -> None:
    """All levels, about many means."""
    levels = np.full((3, 8, 256), low, np.uint8)
    levels[:, 0] = np.arange(256)
    expect_equal(partial(change_contrast, factor=factor), levels, factor != 1)


def test_the_mean_is_rounded_as_pillow_rounds_it() -> None:
    for seed in range(30):
        planes = noise(3, 1 + seed, seed)
        grey = by_pillow(make_grey, planes)[0]
        assert colour.mean_luminance(planes) == int(grey.sum() / grey.size + 0.5)
    half = np.zeros((3, 1, 2), np.uint8)
    half[:, 0, 1] = 1
    assert colour.mean_luminance(half) == 1


def test_grey_of_every_colour() -> None:
    expect_equal(make_grey, every_colour())


@pytest.mark.parametrize(
    "factor", [1.37, *(pytest.param(factor, marks=pytest.mark.slow) for factor in FACTORS)]
)
def test_saturation_of_every_colour(factor: float) -> None:
    expect_equal(partial(change_saturation, factor=factor), every_colour(), factor != 1)


SHIFTS = [-0.5, -0.38, -0.2, -0.1, -0.01, 0.0, 0.003, 0.05, 0.1, 0.17, 0.3, 0.44, 0.5]


@pytest.mark.parametrize(
    "shift", [-0.13, 0.2, *(pytest.param(shift, marks=pytest.mark.slow) for shift in SHIFTS)]
)
def test_hue_of_every_colour(shift: float) -> None:
    expect_equal(partial(turn_hue, shift=shift), every_colour(), shift != 0)


def test_every_hue_shift() -> None:
    planes = noise(40, 50)
    for step in range(-127, 128):
        shift = step / 255 + np.copysign(1e-6, step)
        expect_equal(partial(turn_hue, shift=shift), planes, changes=False)


def test_images_of_one_pixel_and_of_odd_sizes() -> None:
    for height, width in [(1, 1), (1, 7), (13, 1), (31, 17)]:
        for operation in (
            partial(turn_hue, shift=0.1),
            make_grey,
            partial(change_saturation, factor=1.5),
            partial(change_brightness, factor=0.5),
        ):
            expect_equal(operation, noise(height, width))


# ---- by chance

Change = Callable[[Image.Image], Image.Image]
IMAGE = picture(0, side=32)


def seed(number: int) -> None:
    random.seed(number)
    np.random.seed(number)  # noqa: NPY002
    torch.manual_seed(number)


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


def solarize_from_the_middle(image: Image.Image) -> Image.Image:
    """As BYOL, Barlow Twins, VICReg and DINO: Pillow's default threshold is 128."""
    return image if torch.rand(1) > 0.3 else ImageOps.solarize(image)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (ImgPilGaussianBlur(p=0.4, radius_min=0.5, radius_max=3.0), blur),
        (ImgPilRandomSolarize(p=0.3), maybe_solarize),
        (ImgPilRandomSolarize(p=0.3, threshold=128), solarize_from_the_middle),
        (ImgPilRandomPhotometric(), photometric),
        (ImgPilColorDistortion(strength=0.5), distort),
        (ImgPilRandomColorJitter(strength=0.5), jitter),
    ],
)
def test_pixels_and_draws_are_those_of_pillow_and_torchvision(
    change: Change, expected: Change
) -> None:
    """Over many seeds; both outcomes of every chance are seen."""
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


def test_distortion_heeds_all_its_arguments() -> None:
    off = {"brightness": 0, "contrast": 0, "saturation": 0, "hue": 0}
    always_grey = ImgPilColorDistortion(**off, grayscale_probability=1.0)
    assert always_grey(IMAGE).tobytes() == IMAGE.convert("L").convert("RGB").tobytes()
    nothing = ImgPilColorDistortion(color_jitter_probability=0.0, grayscale_probability=0.0)
    assert all(nothing(IMAGE).tobytes() == IMAGE.tobytes() for _ in range(20))
