"""Colours and levels by chance, under VISSL's names; colour kernels beside Pillow: no byte differs."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image, ImageEnhance, ImageFilter, ImageOps
from torchvision.transforms import ColorJitter
from torchvision.transforms import functional as F

from sslengine.data.augment.blur import ImgPilGaussianBlur
from sslengine.data.augment.colour import (
    ImgPilColorDistortion,
    ImgPilRandomColorJitter,
    change_brightness,
    change_contrast,
    change_saturation,
    make_grey,
    mean_luminance,
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
        assert mean_luminance(planes) == int(grey.sum() / grey.size + 0.5)
    half = np.zeros((3, 1, 2), np.uint8)
    half[:, 0, 1] = 1
    assert mean_luminance(half) == 1


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


# ---- what they mean


@pytest.fixture
def pixels() -> Pixels:
    return np.random.default_rng(0).integers(0, 256, (20, 30, 3), np.uint8)


def after(operation: Operation, pixels: Pixels) -> Pixels:
    return np.asarray(operation(Image.fromarray(pixels)))


def luminance(pixels: Pixels) -> NDArray[np.int64]:
    """ITU-R 601, as Pillow rounds it."""
    weights = np.array([19595, 38470, 7471])
    return (pixels.astype(np.int64) @ weights + (1 << 15)) >> 16


def blended(low: NDArray[np.generic] | int, pixels: Pixels, factor: float) -> NDArray[np.float64]:
    return np.clip(low + factor * (pixels.astype(np.float64) - low), 0, 255)


@pytest.mark.parametrize("factor", [0.0, 0.3, 1.0, 1.7])
def test_brightness_contrast_and_saturation_blend(pixels: Pixels, factor: float) -> None:
    mean = int(luminance(pixels).mean() + 0.5)
    grey = luminance(pixels)[..., None]
    for operation, low in (
        (change_brightness, 0),
        (change_contrast, mean),
        (change_saturation, grey),
    ):
        made = after(partial(operation, factor=factor), pixels)
        assert np.abs(made - blended(low, pixels, factor)).max() <= 1


def test_a_third_of_the_hue_turns_red_to_green() -> None:
    red = np.full((2, 2, 3), (255, 0, 0), np.uint8)
    assert (after(partial(turn_hue, shift=1 / 3), red)[0, 0] == (0, 255, 0)).all()


def test_grey(pixels: Pixels) -> None:
    assert (after(make_grey, pixels) == luminance(pixels)[..., None]).all()


# ---- by chance

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
