"""Pillow's tables on a batch, to the bit: each level of a channel becomes another.

Each takes pixels, uint8 [n, 3, height, width], and a parameter for each image, float32 [n].
Tables are made in double and in integers, in Pillow's order. Nothing depends on values on the host.
"""

from __future__ import annotations

import torch
from torch import Tensor

LEVELS = 256


def posterize(pixels: Tensor, kept: Tensor) -> Tensor:
    """kept: the bits of a value that stay, as a number."""
    return pixels & kept.to(torch.uint8).view(-1, 1, 1, 1)


def invert(pixels: Tensor, _: Tensor) -> Tensor:
    return 255 - pixels


def autocontrast(pixels: Tensor, _: Tensor) -> Tensor:
    values = pixels.flatten(2)
    low, high = values.amin(2, keepdim=True).double(), values.amax(2, keepdim=True).double()
    levels = torch.arange(LEVELS, device=pixels.device)
    # A tensor divided, not a number: torch would multiply the number with an inverse.
    scale = torch.full_like(low, 255).div_((high - low).clamp_(min=1))
    stretched = (levels * scale - low * scale).clamp_(0, 255)
    return _looked_up(pixels, torch.where(high > low, stretched, levels))


def equalize(pixels: Tensor, _: Tensor) -> Tensor:
    # In order, the place of a level tells how many pixels are below it: a histogram without
    # atomic additions.
    ordered = pixels.flatten(2).sort(dim=2).values
    levels = torch.arange(LEVELS, device=pixels.device, dtype=torch.uint8)
    below = torch.searchsorted(ordered, levels.expand(*ordered.shape[:2], LEVELS).contiguous())
    step = below.gather(2, ordered[..., -1:].long()) // 255
    spread = ((step // 2 + below) // step.clamp(min=1)).clamp_(max=255)
    return _looked_up(pixels, torch.where(step > 0, spread, levels))


def _looked_up(pixels: Tensor, table: Tensor) -> Tensor:
    """table: [n, 3, LEVELS], of which the part below the point does not count."""
    return table.to(torch.uint8).gather(2, pixels.flatten(2).long()).view_as(pixels)
