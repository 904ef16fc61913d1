"""What trunks that cut images into patches share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

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
