"""Batches of images with operations of their own, and what Pillow makes of them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from sslengine.data.augment import operations as ops
from sslengine.data.augment.operation import Given, Operation


def noise(*shape: int, seed: int = 0) -> Tensor:
    """uint8; a part of it smooth, so that blur and contrast meet more than noise."""
    values = np.random.default_rng(seed).integers(0, 256, shape)
    values[..., shape[-1] // 2 :] //= 8
    return torch.from_numpy(values.astype(np.uint8))


def as_image(pixels: Tensor) -> Image.Image:
    return Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy())


def by_pillow(pixels: Tensor, operations: Sequence[Operation]) -> Tensor:
    image = as_image(pixels)
    for operation in operations:
        image = operation.on_pil(image)
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def drawn(seed: int, radius: float = 2.0) -> list[Operation]:
    """Like SimCLR's, BYOL's, DINO's and PIRL's colours, in any order."""
    draw = random.Random(seed)
    some: list[Operation] = [
        ops.Brightness(draw.uniform(0.2, 1.8)),
        ops.Contrast(draw.uniform(0.2, 1.8)),
        ops.Saturation(draw.uniform(0.2, 1.8)),
        ops.Hue(draw.uniform(-0.5, 0.5)),
        ops.Grey(),
        ops.Solarize(draw.randint(0, 256)),
        ops.Posterize(draw.randint(1, 8)),
        ops.Invert(),
        ops.AutoContrast(),
        ops.Equalize(),
        ops.Sharpness(draw.uniform(0.1, 1.9)),
        ops.Blur(draw.uniform(0.1, radius)),
        ops.Blur(draw.uniform(0.1, radius)),
    ]
    return draw.sample(some, draw.randint(0, len(some)))


Kernel = Callable[[Tensor, Tensor], Tensor]


def kernel_of(kind: type[Operation]) -> Kernel:
    """Of an operation that does not sort views by a number."""

    table = kind.table()

    def kernel(pixels: Tensor, parameters: Tensor) -> Tensor:
        there = table if table is None else table.to(pixels.device)
        return kind.on_device(pixels, Given(parameters, table=there))

    kernel.__name__ = kind.__name__
    return kernel
