"""Grey: the luminance in all three channels."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from PIL import Image
from torchvision.transforms import Grayscale, RandomGrayscale

from sslengine.data.augment.compiling import Array, kernel
from sslengine.data.augment.draws import Draw, always, by_chance, draw_for
from sslengine.data.augment.operation import Operation, Planes
from sslengine.data.augment.operations.luminance import (
    BLUE,
    FROM_16_BITS,
    GREEN,
    RED,
    ROUND,
)
from sslengine.data.augment.stream import as_compared


@dataclass(frozen=True)
class Grey(Operation):
    def on_pil(self, image: Image.Image) -> Image.Image:
        level = image.convert("L")
        return Image.merge("RGB", [level] * 3)

    def on_planes(self, planes: Planes) -> Planes:
        grey(planes)
        return planes


@kernel("void(uint8[:, :, ::1])")
def grey(planes: Array) -> None:
    red, green, blue = planes[0].reshape(-1), planes[1].reshape(-1), planes[2].reshape(-1)
    for i in range(red.size):
        r, g, b = np.float32(red[i]), np.float32(green[i]), np.float32(blue[i])
        level = np.floor((RED * r + GREEN * g + BLUE * b + ROUND) * FROM_16_BITS)
        red[i] = green[i] = blue[i] = np.uint8(level)


@draw_for(Grayscale)
def _grayscale(transform: Any) -> Draw | None:
    return partial(always, Grey()) if transform.num_output_channels == 3 else None


@draw_for(RandomGrayscale)
def _random_grayscale(transform: Any) -> Draw:
    return partial(by_chance, as_compared(transform.p), Grey())
