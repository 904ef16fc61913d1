"""The blur kernel beside Pillow's GaussianBlur: no byte differs."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from sslengine.data.augment import blur as kernels
from sslengine.data.augment.blur import blur
from tests.data.augment.planes import Pixels, by_kernel, by_pillow, noise

# Above 2.449, 4.24 and so on a box reaches one pixel further.
RADII = [0.01, 0.1, 0.3, 0.5, 0.9, 1.0, 1.41, 1.4143, 1.7, 2.0, 2.449, 2.45, 3.3, 4.243, 6.0, 13.7]


def expect_same(planes: Pixels, radius: float) -> None:
    operation = partial(blur, radius=radius)
    assert (by_kernel(operation, planes) == by_pillow(operation, planes)).all(), radius


@pytest.mark.parametrize("radius", RADII)
def test_radii(radius: float) -> None:
    planes = noise(45, 52)
    expect_same(planes, radius)


@pytest.mark.parametrize("seed", range(5))
def test_random_radii(seed: int) -> None:
    for radius in np.random.default_rng(seed).uniform(0.1, 5.0, 20).tolist():
        planes = noise(19, 23, seed)
        expect_same(planes, radius)


@pytest.mark.parametrize("size", [(1, 1), (1, 9), (9, 1), (2, 3), (5, 4), (3, 70), (224, 97)])
@pytest.mark.parametrize("radius", [0.4, 1.0, 1.9, 3.0, 12.0])
def test_sizes_also_below_the_reach(size: tuple[int, int], radius: float) -> None:
    planes = noise(*size)
    expect_same(planes, radius)


def test_more_pixels_than_are_summed_at_once() -> None:
    planes = noise(61, 3 * kernels.STRETCH // 50)
    expect_same(planes, 5.0)


def test_the_boxes_have_the_variance_of_the_gaussian() -> None:
    """Three boxes of the weights, in float64: their variances add up to the radius squared."""
    for radius in (0.7, 1.3, 2.0, 5.0):
        reach, near, far = kernels.find_box(radius)
        steps = np.arange(-reach - 1, reach + 2)
        box = np.full(steps.size, near / 2**24)
        box[[0, -1]] = far / 2**24
        assert box.sum() == pytest.approx(1, abs=1e-6)
        assert 3 * (box @ steps**2) == pytest.approx(radius**2, rel=1e-4)
