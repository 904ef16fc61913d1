"""Colour operations on a batch as Pillow computes them, to the bit.

Each takes pixels, uint8 [n, 3, height, width], and a parameter for each image, float32 [n].
Integers, and floats in Pillow's order of operations: every device gives the same. Nothing
depends on values on the host, so that the host need not wait.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor


def brightness(pixels: Tensor, factor: Tensor) -> Tensor:
    return _as_bytes(pixels.float().mul_(_each(factor)))


def contrast(pixels: Tensor, factor: Tensor) -> Tensor:
    grey = luminance(pixels)
    count = grey[0].numel()
    mean = (2 * grey.sum((1, 2, 3)) + count) // (2 * count)  # rounded to the nearest
    return blend(_each(mean.float()), pixels, factor)


def saturation(pixels: Tensor, factor: Tensor) -> Tensor:
    return blend(luminance(pixels).float(), pixels, factor)


def grey(pixels: Tensor, _: Tensor) -> Tensor:
    return luminance(pixels).to(torch.uint8).expand_as(pixels)


def solarize(pixels: Tensor, threshold: Tensor) -> Tensor:
    return torch.where(pixels < _each(threshold), pixels, 255 - pixels)


def hue(pixels: Tensor, turn: Tensor, falls_short: Tensor) -> Tensor:
    """Turn the hue by `turn` / 256 of the circle, through Pillow's HSV of 8 bits a channel.

    falls_short: what `hues_that_fall_short` gives, on the device.
    """
    angle, saturated, value = _hsv(pixels, falls_short)
    angle = (angle + _each(turn).int()) & 255
    # Six parts of 255 make a circle; each channel is full in two of them, and in between
    # rises or falls in a straight line.
    offset = torch.arange(5, 0, -2, device=pixels.device, dtype=torch.int32) * 255
    along = (6 * angle + offset.view(3, 1, 1)).remainder_(6 * 255)
    taken = torch.minimum(along, 4 * 255 - along).clamp_(0, 255).mul_(saturated * value)
    return (value - _rounded_quotient(taken, 255 * 255)).to(torch.uint8)


def _hsv(pixels: Tensor, falls_short: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Hue, saturation and value, int32 [n, 1, height, width] each, from 0 to 255."""
    red, green, blue = pixels.int().split(1, dim=1)
    value = torch.maximum(torch.maximum(red, green), blue)
    chroma = value - torch.minimum(torch.minimum(red, green), blue)
    along = torch.where(
        red == value,
        green - blue,
        torch.where(green == value, blue - red + 2 * chroma, red - green + 4 * chroma),
    )
    along += 6 * chroma * (along < 0)
    width = (2 * chroma).clamp_(min=1)
    angle = _quotient(85 * along, width)
    angle -= ((angle * width == 85 * along) & falls_short[angle]).int()
    return angle, _quotient(255 * chroma, value.clamp(min=1)), value


def hues_that_fall_short() -> NDArray[np.bool_]:
    """Where 255 times the hue is the whole number n, Pillow's floats may come out just below it.

    Whether they do depends on n alone, so that 255 colours tell.
    """
    along = (np.array([5, 3, 1]) * 85 + 2 * np.arange(256)[:, None]) % (6 * 85)
    colours = 85 - np.clip(np.minimum(along, 4 * 85 - along), 0, 85)
    image = Image.fromarray(colours.astype(np.uint8)[None])
    hues = np.asarray(image.convert("HSV"))[0, :, 0]
    return hues.astype(int) < np.arange(256) % 255


def luminance(pixels: Tensor) -> Tensor:
    """Pillow's "L": int32 [n, 1, height, width]."""
    red, green, blue = pixels.int().split(1, dim=1)
    grey: Tensor = (19595 * red + 38470 * green + 7471 * blue + (1 << 15)) >> 16
    return grey


def blend(low: Tensor, pixels: Tensor, factor: Tensor) -> Tensor:
    """`low` at factor 0, the pixels at 1."""
    return _as_bytes((pixels - low).mul_(_each(factor)).add_(low))


def _as_bytes(values: Tensor) -> Tensor:
    return values.clamp_(0, 255).to(torch.uint8)  # towards zero


def _each(parameter: Tensor) -> Tensor:
    return parameter.view(-1, 1, 1, 1)


def _quotient(numerator: Tensor, denominator: Tensor) -> Tensor:
    return torch.div(numerator, denominator, rounding_mode="floor")


def _rounded_quotient(numerator: Tensor, denominator: int) -> Tensor:
    return torch.div(2 * numerator + denominator, 2 * denominator, rounding_mode="floor")
