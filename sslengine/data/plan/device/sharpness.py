"""Pillow's sharpness on a batch, to the bit.

Smooth is a sum over 3 x 3 pixels, the one in the middle five times, by 13, rounded: in integers,
as it never comes to a half. The outermost pixels have not all neighbours, and stay.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sslengine.data.plan.device.colour import blend


def sharpness(pixels: Tensor, factor: Tensor) -> Tensor:
    """uint8 [n, 3, height, width]; a factor for each image, float32 [n]."""
    values = pixels.int()
    rows = values[..., :-2, :] + values[..., 1:-1, :] + values[..., 2:, :]
    around = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:]
    total = around + 4 * values[..., 1:-1, 1:-1]
    smooth = pixels.float()
    smooth[..., 1:-1, 1:-1] = torch.div(2 * total + 13, 26, rounding_mode="floor").float()
    return blend(smooth, pixels, factor)
