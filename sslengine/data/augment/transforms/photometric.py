"""PIRL's photometric changes, under VISSL's name and with its draws."""

from __future__ import annotations

import numpy as np

from sslengine.data.augment.operation import Operation, Size
from sslengine.data.augment.operations.autocontrast import AutoContrast
from sslengine.data.augment.operations.posterize import Posterize
from sslengine.data.augment.operations.sharpness import Sharpness
from sslengine.data.augment.operations.solarize import DrawnSolarize
from sslengine.data.augment.transform import Transform, Wraps, with_probability
from sslengine.registry import register_transform


@register_transform("ImgPilRandomPhotometric")
class ImgPilRandomPhotometric(Wraps):
    """PIRL's, all or none: posterize, sharpen or soften, solarize, stretch the contrast."""

    def __init__(self, p: float = 0.66) -> None:
        """p: probability of all of them together."""
        self.change = with_probability(p, _Posterize(), _Sharpen(), DrawnSolarize(), _Stretch())


class _Posterize(Transform):
    def draw(self, size: Size) -> list[Operation]:
        return [Posterize(int(np.random.randint(4, 9)))]  # noqa: NPY002


class _Sharpen(Transform):
    def draw(self, size: Size) -> list[Operation]:
        return [Sharpness(np.random.uniform(0.1, 1.9))]  # noqa: NPY002


class _Stretch(Transform):
    def draw(self, size: Size) -> list[Operation]:
        return [AutoContrast()]
