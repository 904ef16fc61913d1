"""What maps levels: kernels beside Pillow, of which no byte differs, and what each means."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from sslengine.data.augment.levels import (
    equalize,
    invert,
    posterize,
    sharpen,
    solarize,
    stretch_contrast,
)
from tests.data.augment.planes import Operation, Pixels, by_kernel, by_pillow, describe, noise

LEVELS = np.arange(256, dtype=np.uint8)
SIZES = [(1, 1), (1, 2), (2, 1), (3, 5), (15, 17), (20, 30), (33, 64), (120, 97)]


def expect_same(planes: Pixels) -> None:
    for operation in (stretch_contrast, equalize):
        assert (by_kernel(operation, planes) == by_pillow(operation, planes)).all()


def between(low: int, high: int) -> Pixels:
    return np.clip(LEVELS, low, high)[None]


def test_from_many_levels_to_many() -> None:
    """At each there are floats that come out just below a whole number."""
    ranges = [between(low, high) for low in range(0, 256, 5) for high in range(low, 256, 2)]
    for number in range(0, len(ranges) - 2, 3):
        expect_same(np.stack(ranges[number : number + 3]))


@pytest.mark.parametrize("size", SIZES)
def test_sizes_and_distributions(size: tuple[int, int]) -> None:
    for seed in range(10):
        planes = noise(*size, seed)
        dark = (planes.astype(int) ** 2 // 255).astype(np.uint8)
        two = np.where(planes < 99, planes[0, 0, 0], 200).astype(np.uint8)
        for each in (planes, dark, dark // 9, two, np.full_like(planes, seed)):
            expect_same(each)


@pytest.mark.parametrize(
    "operation",
    [
        *(partial(solarize, threshold=level) for level in (0, 1, 100, 128, 255, 256)),
        *(partial(posterize, bits=bits) for bits in range(1, 9)),
        invert,
    ],
    ids=describe,
)
def test_every_level(operation: Operation) -> None:
    levels = np.tile(LEVELS, (3, 1, 1))
    assert (by_kernel(operation, levels) == by_pillow(operation, levels)).all()


SMALL = [(1, 1), (1, 2), (2, 9), (9, 2), (3, 3), (4, 5), (31, 17), (150, 131)]


@pytest.mark.parametrize("factor", [0.0, 0.1, 0.63, 1.0, 1.37, 1.9, 3.0, -0.5])
def test_sharpness(factor: float) -> None:
    for size in SMALL:
        planes = noise(*size)
        for each in (planes, np.where(planes < 128, 0, 255).astype(np.uint8), planes // 32):
            operation = partial(sharpen, factor=factor)
            assert (by_kernel(operation, each) == by_pillow(operation, each)).all()


# ---- what they mean


@pytest.fixture
def pixels() -> Pixels:
    return np.random.default_rng(0).integers(0, 256, (20, 30, 3), np.uint8)


def after(operation: Operation, pixels: Pixels) -> Pixels:
    return np.asarray(operation(Image.fromarray(pixels)))


def blended(low: NDArray[np.generic] | int, pixels: Pixels, factor: float) -> NDArray[np.float64]:
    return np.clip(low + factor * (pixels.astype(np.float64) - low), 0, 255)


def test_solarize_inverts_from_the_threshold_on(pixels: Pixels) -> None:
    solarized = after(partial(solarize, threshold=100), pixels)
    assert (solarized == np.where(pixels < 100, pixels, 255 - pixels)).all()


def test_posterize_keeps_the_upper_bits(pixels: Pixels) -> None:
    assert (after(partial(posterize, bits=3), pixels) == pixels // 32 * 32).all()
    assert (after(partial(posterize, bits=8), pixels) == pixels).all()


def test_invert(pixels: Pixels) -> None:
    assert (after(invert, pixels) == 255 - pixels).all()


def test_autocontrast_stretches_each_channel(pixels: Pixels) -> None:
    narrow = (pixels // np.array([2, 4, 8]) + 30).astype(np.uint8)
    low, high = narrow.min((0, 1)).astype(float), narrow.max((0, 1)).astype(float)
    expected = (narrow - low) * 255 / (high - low)
    stretched = after(stretch_contrast, narrow)
    assert np.abs(stretched - expected).max() <= 1


def test_equalize_gives_a_value_by_how_many_pixels_are_darker(pixels: Pixels) -> None:
    dark = np.tile((pixels.astype(int) ** 2 // 255).astype(np.uint8), (5, 5, 1))
    spread = after(equalize, dark)
    for channel in range(3):
        values = dark[..., channel].ravel()
        darker = np.searchsorted(np.sort(values), values) / len(values)
        assert np.abs(spread[..., channel].ravel() - 255 * darker).max() < 255 * 0.03


@pytest.mark.parametrize("factor", [0.0, 0.3, 1.0, 1.9])
def test_sharpness_goes_away_from_a_weighted_mean_of_neighbours(
    pixels: Pixels, factor: float
) -> None:
    sharp, inner = after(partial(sharpen, factor=factor), pixels), (slice(1, -1), slice(1, -1))
    shifts = [pixels[y : y + 18, x : x + 28].astype(float) for y in range(3) for x in range(3)]
    smooth = (sum(shifts) + 4 * shifts[4]) / 13
    assert np.abs(sharp[inner] - blended(smooth, pixels[inner], factor)).max() < 2
    edge = np.ones(pixels.shape, bool)
    edge[inner] = False
    assert (sharp[edge] == pixels[edge]).all()
