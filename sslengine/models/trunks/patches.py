"""What trunks that cut images into patches share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from sslengine.errors import ConfigError


def patch_grid(x: Tensor, patch_size: int, section: str) -> tuple[int, int]:
    """How many patches images have, down and across; ConfigError if they do not come out even."""
    height, width = x.shape[-2:]
    if height % patch_size or width % patch_size:
        raise ConfigError(
            f"config.MODEL.TRUNK.{section}.PATCH_SIZE: {patch_size} does not divide images of "
            f"{height} x {width}; resize or crop them in DATA."
        )
    return height // patch_size, width // patch_size


def set_attention_scale(attentions: Iterable[Any], scale: float) -> None:
    """Another factor on queries times keys than 1 / sqrt(width of a head)."""
    for attention in attentions:
        # The fused kernel is called with the usual scale, whatever `scale` says.
        attention.fused_attn, attention.scale = False, scale


def split_patches(images: Tensor, size: int) -> Tensor:
    """N x C x H x W -> N x L x (size * size * C), row by row."""
    count, channels, height, width = images.shape
    cut = images.reshape(count, channels, height // size, size, width // size, size)
    return cut.permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)


def join_patches(patches: Tensor, size: int, shape: torch.Size) -> Tensor:
    """The reverse, for images of that shape."""
    count, channels, height, width = shape
    cut = patches.reshape(count, height // size, width // size, size, size, channels)
    return cut.permute(0, 5, 1, 3, 2, 4).reshape(shape)


def sine_positions(
    rows: int, columns: int, width: int, device: torch.device | None = None
) -> Tensor:
    """(rows * columns) x width: a quarter each sines and cosines of the column, then of the row."""
    make: dict[str, Any] = {"dtype": torch.float64, "device": device}
    steps = torch.arange(width // 4, **make) / (width // 4)
    frequencies = 10_000.0**-steps
    across = torch.arange(columns, **make).outer(frequencies)
    down = torch.arange(rows, **make).outer(frequencies)
    across, down = across.repeat(rows, 1), down.repeat_interleave(columns, dim=0)
    return torch.cat([across.sin(), across.cos(), down.sin(), down.cos()], dim=1).float()
