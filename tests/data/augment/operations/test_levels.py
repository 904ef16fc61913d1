"""Table kernels beside Pillow: no byte differs."""

from __future__ import annotations

import numpy as np
import pytest

from sslengine.data.augment import operations as ops
from tests.data.augment.planes import Pixels, by_pillow, noise

pytest.importorskip("sslengine.data.augment.backends.compiled", reason="numba is not installed")

LEVELS = np.arange(256, dtype=np.uint8)
SIZES = [(1, 1), (1, 2), (2, 1), (3, 5), (15, 17), (20, 30), (33, 64), (120, 97)]


def expect_same(planes: Pixels) -> None:
    for op in (ops.AutoContrast(), ops.Equalize()):
        assert (op.on_planes(planes.copy()) == by_pillow(op, planes)).all()


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
