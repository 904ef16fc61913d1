"""Equalize: each channel's values are spread, so that about as many pixels have each."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor
from torchvision.transforms import RandomEqualize

from sslengine.data.augment.compiling import Array, kernel
from sslengine.data.augment.draws import Draw, by_chance, draw_for
from sslengine.data.augment.operation import Given, Operation, Planes
from sslengine.data.augment.operations.levels import LEVELS, looked_up


@dataclass(frozen=True)
class Equalize(Operation):
    """Tables are made in integers, as Pillow's are."""

    def on_pil(self, image: Image.Image) -> Image.Image:
        return ImageOps.equalize(image)

    def on_planes(self, planes: Planes) -> Planes:
        equalize(planes)
        return planes

    @staticmethod
    def on_device(pixels: Tensor, _: Given) -> Tensor:
        # In order, the place of a level is the number of pixels below it: a histogram without
        # atomic additions.
        ordered = pixels.flatten(2).sort(dim=2).values
        levels = torch.arange(LEVELS, device=pixels.device, dtype=torch.uint8)
        below = torch.searchsorted(ordered, levels.expand(*ordered.shape[:2], LEVELS).contiguous())
        step = below.gather(2, ordered[..., -1:].long()) // 255
        spread = ((step // 2 + below) // step.clamp(min=1)).clamp_(max=255)
        return looked_up(pixels, torch.where(step > 0, spread, levels))


@kernel("void(uint8[:, :, ::1])")
def equalize(planes: Array) -> None:
    table = np.empty(LEVELS, np.uint8)
    for channel in range(3):
        values = planes[channel].reshape(-1)
        counts = np.zeros(LEVELS, np.int64)
        most = np.uint8(0)
        for i in range(values.size):
            counts[values[i]] += 1
            most = max(most, values[i])
        step = (values.size - counts[most]) // 255
        if step > 0:
            passed = np.int64(step // 2)
            for level in range(LEVELS):
                table[level] = np.uint8(min(passed // step, 255))
                passed += counts[level]
            for i in range(values.size):
                values[i] = table[values[i]]


@draw_for(RandomEqualize)
def _random_equalize(transform: Any) -> Draw:
    return partial(by_chance, transform.p, Equalize())
