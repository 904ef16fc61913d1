"""What maps levels: kernels beside Pillow, of which no byte differs, and what each means."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from sslengine.data.augment.levels import (
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
    assert (by_kernel(stretch_contrast, planes) == by_pillow(stretch_contrast, planes)).all()


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
