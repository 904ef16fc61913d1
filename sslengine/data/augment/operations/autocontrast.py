"""Auto-contrast: each channel is stretched over all its values."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor
from torchvision.transforms import RandomAutocontrast

from sslengine.data.augment.compiling import Array, kernel
from sslengine.data.augment.draws import Draw, by_chance, draw_for
from sslengine.data.augment.operation import Given, Operation, Planes
from sslengine.data.augment.operations.levels import LEVELS, looked_up


@dataclass(frozen=True)
class AutoContrast(Operation):
    """Tables are made in double, in Pillow's order: no byte differs."""

    def on_pil(self, image: Image.Image) -> Image.Image:
        return ImageOps.autocontrast(image)

    def on_planes(self, planes: Planes) -> Planes:
        autocontrast(planes)
        return planes

    @staticmethod
    def on_device(pixels: Tensor, _: Given) -> Tensor:
        values = pixels.flatten(2)
        low, high = values.amin(2, keepdim=True).double(), values.amax(2, keepdim=True).double()
        levels = torch.arange(LEVELS, device=pixels.device)
        # A tensor divided, not a number: torch would multiply the number with an inverse.
        scale = torch.full_like(low, 255).div_((high - low).clamp_(min=1))
        stretched = (levels * scale - low * scale).clamp_(0, 255)
        return looked_up(pixels, torch.where(high > low, stretched, levels))


@kernel("void(uint8[:, :, ::1])")
def autocontrast(planes: Array) -> None:
    table = np.empty(LEVELS, np.uint8)
    for channel in range(3):
        values = planes[channel].reshape(-1)
        least, most = np.uint8(255), np.uint8(0)
        for i in range(values.size):
            least, most = min(least, values[i]), max(most, values[i])
        low, high = np.float64(least), np.float64(most)
        if high > low:
            scale = 255.0 / (high - low)
            offset = -low * scale
            for level in range(LEVELS):
                table[level] = np.uint8(min(max(level * scale + offset, 0.0), 255.0))
            for i in range(values.size):
                values[i] = table[values[i]]


@draw_for(RandomAutocontrast)
def _random_autocontrast(transform: Any) -> Draw:
    return partial(by_chance, transform.p, AutoContrast())
