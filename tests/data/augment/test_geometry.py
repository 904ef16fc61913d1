"""Crops, flips and turns: draws are torchvision's, and no byte differs from Pillow's."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import InterpolationMode, RandomResizedCrop
from torchvision.transforms import functional as F

from sslengine.data.augment import geometry
from sslengine.data.augment.geometry import (
    ImgPilResizeLargerSide,
    ImgRotatePil,
    MNISTImgPil2RGB,
    ResizedCrop,
    crop,
    turn,
)
from sslengine.data.augment.geometry import flip as flip_image
from tests.data.augment.planes import (
    Operation,
    Pixels,
    as_image,
    by_kernel,
    by_pillow,
    compile_or_skip,
    describe,
    noise,
)
from tests.data.pictures import picture

CUBIC = InterpolationMode.BICUBIC
BOTH = pytest.mark.parametrize("interpolation", [InterpolationMode.BILINEAR, CUBIC])


def expect_same(operation: Operation, planes: Pixels) -> None:
    expected = by_pillow(operation, planes)
    assert (by_kernel(operation, planes) == expected).all(), operation


# ---- kernels beside Pillow


@BOTH
@pytest.mark.parametrize("seed", range(4))
def test_random_boxes_smaller_and_larger(seed: int, interpolation: InterpolationMode) -> None:
    planes = noise(117, 150, seed)
    draw = np.random.default_rng(seed)
    for _ in range(25):
        height, width = draw.integers(1, 118), draw.integers(1, 151)
        top, left = draw.integers(0, 118 - height), draw.integers(0, 151 - width)
        to = tuple(draw.integers(1, 130, 2).tolist())
        box = tuple(int(number) for number in (top, left, height, width))
        expect_same(partial(crop, box=box, to=to, interpolation=interpolation), planes)


@BOTH
def test_levels_do_not_run_over(interpolation: InterpolationMode) -> None:
    """A cubic overshoots at an edge from black to white."""
    planes = np.zeros((3, 40, 40), np.uint8)
    planes[:, 10:30, 15:] = 255
    for to in [(9, 9), (40, 40), (77, 31)]:
        cut = partial(crop, box=(0, 0, 40, 40), to=to, interpolation=interpolation)
        expect_same(cut, planes)


@pytest.mark.parametrize("size", [(1, 1), (1, 8), (8, 1), (180, 2)])
def test_thin_parts(size: tuple[int, int]) -> None:
    for to in [(1, 1), (5, 7), (64, 3), size]:
        expect_same(partial(crop, box=(0, 0, *size), to=to), noise(180, 8))


@BOTH
@pytest.mark.parametrize("side", [1, 7, 16, 33, 90, 180])
def test_from_much_larger_to_much_smaller(side: int, interpolation: InterpolationMode) -> None:
    """So pixels are made of one, two, four and up to hundreds; strips are full or are not."""
    cut = partial(crop, box=(0, 0, 180, 97), to=(side, side), interpolation=interpolation)
    expect_same(cut, noise(180, 97))


@pytest.mark.parametrize(
    "operation",
    [
        partial(crop, box=(-3, 40, 70, 99), to=(31, 32)),
        partial(crop, box=(0, 0, 60, 75), to=(50, 66), interpolation=InterpolationMode.NEAREST),
        partial(crop, box=(0, 0, 60, 75), to=(30, 33), interpolation=InterpolationMode.LANCZOS),
        partial(crop, box=(-6, -4, 80, 50), to=(80, 50)),
        partial(turn, degrees=33.0),
    ],
    ids=describe,
)
def test_what_has_no_kernel_is_pillows(operation: Operation) -> None:
    expect_same(operation, noise(60, 75))


@pytest.mark.parametrize("size", [(1, 1), (1, 9), (9, 1), (33, 40), (224, 97)])
def test_flips_and_quarter_turns(size: tuple[int, int]) -> None:
    for operation in (flip_image, *(partial(turn, degrees=90 * times) for times in range(4))):
        expect_same(operation, noise(*size))


def test_both_orders_of_the_passes_are_within_a_level_of_exact_sums() -> None:
    """A version of Pillow may choose either. In float64, without rounding between passes."""
    compile_or_skip()
    part = np.asarray(as_image(noise(200, 60)))
    exact = np.einsum("yh,hwc,xw->cyx", matrix(200, 50), part.astype(float), matrix(60, 55))
    for columns_first in (False, True):
        made = np.empty((3, 50, 55), np.uint8)
        geometry.resize_box(part, (0, 0, 200, 60), (50, 55), False, columns_first, made)
        assert np.abs(made - exact).max() <= 1.01


def matrix(before: int, after: int) -> Any:
    """The antialiased triangle filter."""
    scale = before / after
    old, new = np.arange(before) + 0.5, (np.arange(after)[:, None] + 0.5) * scale
    weights = np.maximum(0, 1 - np.abs(old - new) / max(scale, 1))
    return weights / weights.sum(1, keepdims=True)


def test_rows_below_stay_as_they_are() -> None:
    compile_or_skip()
    planes, out = noise(40, 50), np.full((3, 11, 11), 7, np.uint8)
    pixels, order = np.asarray(as_image(planes)), geometry.COLUMNS_MAY_COME_FIRST
    geometry.resize_box(pixels, (3, 4, 30, 20), (9, 11), False, order, out)
    assert (out[:, :9] == by_pillow(partial(crop, box=(3, 4, 30, 20), to=(9, 11)), planes)).all()
    assert (out[:, 9:] == 7).all()


# ---- what they mean


def after(operation: Operation, pixels: Any) -> Pixels:
    return np.asarray(operation(Image.fromarray(pixels)))


def test_any_other_turn_is_about_the_middle_and_leaves_corners_black() -> None:
    white = np.full((21, 21, 3), 255, np.uint8)
    white[10, 20] = 0
    turned = after(partial(turn, degrees=45.0), white)
    assert not turned[[0, 0, -1, -1], [0, -1, 0, -1]].any()
    assert (turned[10, 1:20] == 255).all()  # what was on the right is above it now
    assert not turned[3, 17].any()


# ---- draws

CROPS = [
    RandomResizedCrop(224),
    RandomResizedCrop((20, 31), (0.05, 0.14), interpolation=CUBIC),
    RandomResizedCrop(7, (0.9, 1.0), (0.3, 0.4)),
    RandomResizedCrop(7, (1.0, 1.0), (2.0, 2.5)),
]


@pytest.mark.parametrize("transform", CROPS, ids=str)
@pytest.mark.parametrize("size", [(375, 500), (500, 375), (1, 1), (400, 3), (3, 400), (64, 64)])
def test_boxes_and_the_stream_afterwards_are_torchvisions(
    transform: RandomResizedCrop, size: tuple[int, int]
) -> None:
    ours, image = ResizedCrop(transform), torch.empty(3, *size)
    for seed in range(100):
        torch.manual_seed(seed)
        box = transform.get_params(image, transform.scale, transform.ratio)
        afterwards = torch.rand(1)
        torch.manual_seed(seed)
        assert ours.draw_box(size) == box
        assert torch.rand(1) == afterwards


# ---- rotation


def wide() -> Image.Image:
    return picture(4, side=12).crop((0, 0, 12, 7))


@pytest.mark.parametrize("image", [picture(0, side=9), wide()], ids=["square", "wide"])
def test_turning_back_by_the_label_gives_the_image(image: Image.Image) -> None:
    labels = set()
    for number in range(40):
        torch.manual_seed(number)
        turned, label = ImgRotatePil()(image)
        labels.add(label)
        assert np.array_equal(np.rot90(np.asarray(turned), -label), np.asarray(image))
    assert labels == {0, 1, 2, 3}


@pytest.mark.parametrize("num_angles", [4, 8])
def test_squares_are_turned_as_torchvision_does_and_vissl_draws(num_angles: int) -> None:
    image = picture(1, side=16)
    for number in range(30):
        torch.manual_seed(number)
        turned, label = ImgRotatePil(num_angles)(image)
        afterwards = torch.rand(1)
        torch.manual_seed(number)
        expected = int(torch.randint(num_angles, [1]))
        assert (label, torch.rand(1)) == (expected, afterwards)
        theirs = F.rotate(image, label * 360 / num_angles)
        assert turned.tobytes() == theirs.tobytes()


@pytest.mark.parametrize(
    ("size", "side", "expected"),
    [((12, 5), 24, (24, 10)), ((5, 12), 6, (2, 6)), ((7, 7), 7, (7, 7)), ((100, 1), 10, (10, 1))],
)
def test_the_larger_side_is_as_asked(
    size: tuple[int, int], side: int, expected: tuple[int, int]
) -> None:
    image = picture(0, side=128).resize(size)
    resized = ImgPilResizeLargerSide(side)(image)
    assert resized.size == expected
    assert resized.tobytes() == image.resize(expected, Image.Resampling.BILINEAR).tobytes()


def test_digits_become_rgb() -> None:
    digit = picture(3).convert("L")
    plain = np.asarray(MNISTImgPil2RGB()(digit))
    assert (plain == np.asarray(digit)[..., None]).all()
    assert plain.shape == (8, 8, 3)
    pasted = np.array(MNISTImgPil2RGB([12, 10], [3, 1])(digit))
    assert pasted.shape == (10, 12, 3)
    assert (pasted[1:9, 3:11] == plain).all()
    pasted[1:9, 3:11] = 0
    assert not pasted.any()
    assert MNISTImgPil2RGB(32)(digit).size == (32, 32)
