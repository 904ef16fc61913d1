"""The resize kernel beside Pillow's crop and resize: no byte differs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from PIL import Image
from torchvision.transforms import InterpolationMode

from sslengine.data.augment import operations as ops
from sslengine.data.augment.operations import crop as kernels
from tests.data.augment.planes import as_image, as_planes, noise

pytest.importorskip("sslengine.data.augment.backends.compiled", reason="numba is not installed")

CUBIC = InterpolationMode.BICUBIC


def resized(image: Image.Image, op: ops.Crop, flip: bool = False) -> Any:
    box, order = (op.top, op.left, op.height, op.width), kernels.COLUMNS_MAY_COME_FIRST
    out = np.empty((3, *op.to), np.uint8)
    kernels.resize(np.asarray(image), box, op.to, op.interpolation == CUBIC, flip, order, out)
    return out


@pytest.mark.parametrize("interpolation", [InterpolationMode.BILINEAR, CUBIC])
@pytest.mark.parametrize("seed", range(4))
def test_random_boxes_smaller_and_larger(seed: int, interpolation: InterpolationMode) -> None:
    image = as_image(noise(117, 150, seed))
    draw = np.random.default_rng(seed)
    for _ in range(25):
        height, width = draw.integers(1, 118), draw.integers(1, 151)
        top, left = draw.integers(0, 118 - height), draw.integers(0, 151 - width)
        to = tuple(draw.integers(1, 130, 2).tolist())
        box = (int(number) for number in (top, left, height, width))
        op = ops.Crop(*box, to=to, interpolation=interpolation)  # type: ignore[arg-type]
        expected = as_planes(op.on_pil(image))
        assert (resized(image, op) == expected).all(), op
        assert (resized(image, op, flip=True) == expected[:, :, ::-1]).all(), op


@pytest.mark.parametrize("interpolation", [InterpolationMode.BILINEAR, CUBIC])
def test_levels_do_not_run_over(interpolation: InterpolationMode) -> None:
    """A cubic overshoots at an edge from black to white."""
    pixels = np.zeros((40, 40, 3), np.uint8)
    pixels[10:30, 15:] = 255
    image = Image.fromarray(pixels)
    for to in [(9, 9), (40, 40), (77, 31)]:
        op = ops.Crop(0, 0, 40, 40, to=to, interpolation=interpolation)
        assert (resized(image, op) == as_planes(op.on_pil(image))).all()


@pytest.mark.parametrize("size", [(1, 1), (1, 8), (8, 1), (180, 2)])
def test_thin_parts(size: tuple[int, int]) -> None:
    image = as_image(noise(180, 8))
    for to in [(1, 1), (5, 7), (64, 3), size]:
        op = ops.Crop(0, 0, *size, to=to)
        assert (resized(image, op) == as_planes(op.on_pil(image))).all()


def test_both_orders_of_the_passes_are_within_a_level_of_exact_sums() -> None:
    """A version of Pillow may choose either. In float64, without rounding between passes."""
    image = as_image(noise(200, 60))
    part = np.asarray(image)
    exact = np.einsum("yh,hwc,xw->cyx", matrix(200, 50), part.astype(float), matrix(60, 55))
    for columns_first in (False, True):
        made = np.empty((3, 50, 55), np.uint8)
        kernels.resize(part, (0, 0, 200, 60), (50, 55), False, False, columns_first, made)
        assert np.abs(made - exact).max() <= 1.01


def matrix(before: int, after: int) -> Any:
    """The antialiased triangle filter."""
    scale = before / after
    old, new = np.arange(before) + 0.5, (np.arange(after)[:, None] + 0.5) * scale
    weights = np.maximum(0, 1 - np.abs(old - new) / max(scale, 1))
    return weights / weights.sum(1, keepdims=True)


@pytest.mark.parametrize("interpolation", [InterpolationMode.BILINEAR, CUBIC])
@pytest.mark.parametrize("side", [1, 7, 16, 33, 90, 180])
def test_from_much_larger_to_much_smaller(side: int, interpolation: InterpolationMode) -> None:
    """So pixels are made of one, two, four and up to hundreds; strips are full or are not."""
    image = as_image(noise(180, 97))
    op = ops.Crop(0, 0, 180, 97, to=(side, side), interpolation=interpolation)
    assert (resized(image, op) == as_planes(op.on_pil(image))).all()


def test_rows_below_stay_as_they_are() -> None:
    image = as_image(noise(40, 50))
    op = ops.Crop(3, 4, 30, 20, to=(9, 11))
    out = np.full((3, 11, 11), 7, np.uint8)
    order = kernels.COLUMNS_MAY_COME_FIRST
    kernels.resize(np.asarray(image), (3, 4, 30, 20), op.to, False, False, order, out)
    assert (out[:, :9] == as_planes(op.on_pil(image))).all()
    assert (out[:, 9:] == 7).all()


def test_interleaved() -> None:
    planes = noise(7, 5)
    assert (kernels.interleaved(planes) == planes.transpose(1, 2, 0)).all()
