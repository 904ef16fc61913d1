"""Colour kernels beside Pillow: no byte differs."""

from __future__ import annotations

import numpy as np
import pytest

from sslengine.data.augment import operations as ops
from sslengine.data.augment.operation import Operation
from sslengine.data.augment.operations import contrast
from tests.data.augment.planes import Pixels, by_pillow, every_colour, noise

pytest.importorskip("sslengine.data.augment.backends.compiled", reason="numba is not installed")

FACTORS = [0.0, 0.2, 0.63, 1.0, 1.37, 1.8, 3.0]


def expect_equal(op: Operation, planes: Pixels) -> None:
    expected = by_pillow(op, planes)
    assert (expected != planes).any() or getattr(op, "factor", 1.0) == 1.0 or op == ops.Hue(0)
    assert (op.on_planes(planes) == expected).all()


@pytest.mark.parametrize("factor", FACTORS)
def test_brightness(factor: float) -> None:
    levels = np.arange(3 * 256, dtype=np.int64).astype(np.uint8).reshape(3, 1, 256)
    expect_equal(ops.Brightness(factor), levels)


@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize("low", range(0, 256, 25))
def test_contrast(factor: float, low: int) -> None:
    """All levels, about many means."""
    levels = np.full((3, 8, 256), low, np.uint8)
    levels[:, 0] = np.arange(256)
    expect_equal(ops.Contrast(factor), levels)


def test_the_mean_is_rounded_as_pillow_rounds_it() -> None:
    for seed in range(30):
        planes = noise(3, 1 + seed, seed)
        grey = by_pillow(ops.Grey(), planes)[0]
        assert contrast.mean_luminance(planes) == int(grey.sum() / grey.size + 0.5)
    half = np.zeros((3, 1, 2), np.uint8)
    half[:, 0, 1] = 1
    assert contrast.mean_luminance(half) == 1


@pytest.mark.parametrize("threshold", [0, 1, 100, 128, 255, 256])
def test_solarize(threshold: int) -> None:
    levels = np.tile(np.arange(256, dtype=np.uint8), (3, 1, 1))
    expected = by_pillow(ops.Solarize(threshold), levels)
    assert (ops.Solarize(threshold).on_planes(levels) == expected).all()


def test_grey_of_every_colour() -> None:
    expect_equal(ops.Grey(), every_colour())


@pytest.mark.parametrize(
    "factor", [1.37, *(pytest.param(factor, marks=pytest.mark.slow) for factor in FACTORS)]
)
def test_saturation_of_every_colour(factor: float) -> None:
    expect_equal(ops.Saturation(factor), every_colour())


SHIFTS = [-0.5, -0.38, -0.2, -0.1, -0.01, 0.0, 0.003, 0.05, 0.1, 0.17, 0.3, 0.44, 0.5]


@pytest.mark.parametrize(
    "shift", [-0.13, 0.2, *(pytest.param(shift, marks=pytest.mark.slow) for shift in SHIFTS)]
)
def test_hue_of_every_colour(shift: float) -> None:
    expect_equal(ops.Hue(shift), every_colour())


def test_every_hue_shift() -> None:
    planes = noise(40, 50)
    for step in range(-127, 128):
        copy = planes.copy()
        shift = step / 255 + np.copysign(1e-6, step)
        made = ops.Hue(shift).on_planes(copy)
        assert (made == by_pillow(ops.Hue(shift), planes)).all(), step


def test_images_of_one_pixel_and_of_odd_sizes() -> None:
    for height, width in [(1, 1), (1, 7), (13, 1), (31, 17)]:
        for op in (ops.Hue(0.1), ops.Grey(), ops.Saturation(1.5), ops.Brightness(0.5)):
            expect_equal(op, noise(height, width))
