"""The sharpness kernel beside Pillow: no byte differs."""

from __future__ import annotations

import numpy as np
import pytest

from sslengine.data.augment import operations as ops
from sslengine.data.augment.operations import sharpness as kernels
from tests.data.augment.planes import by_pillow, noise

pytest.importorskip("sslengine.data.augment.backends.compiled", reason="numba is not installed")
SIZES = [(1, 1), (1, 2), (2, 9), (9, 2), (3, 3), (4, 5), (31, 17), (150, 131)]


@pytest.mark.parametrize("factor", [0.0, 0.1, 0.63, 1.0, 1.37, 1.9, 3.0, -0.5])
def test_as_pillow_does(factor: float) -> None:
    for size in SIZES:
        planes = noise(*size)
        for each in (planes, np.where(planes < 128, 0, 255).astype(np.uint8), planes // 32):
            before = each.copy()
            made = kernels.sharpened(each, factor)
            assert (made == by_pillow(ops.Sharpness(factor), each)).all()
            assert (each == before).all()
