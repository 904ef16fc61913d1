"""What trunks that cut images into patches share."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import torch
from torch import Tensor

from sslengine.errors import ConfigError
from sslengine.models.options import VisionTransformerOptions
from sslengine.models.trunks.library import LibraryTrunk
from sslengine.models.trunks.options import BeitOptions, SwinTransformerOptions, XcitOptions


class PatchTrunk(LibraryTrunk):
    patch_size: int

    def features(self, x: Tensor, wanted: Collection[str], **extra: Tensor) -> dict[str, Tensor]:
        self.grid(x)
        return super().features(x, wanted)

    def grid(self, x: Tensor) -> tuple[int, int]:
        return patch_grid(x, self.patch_size, self.section.rpartition(".")[2])

    def as_map(self, patches: Tensor, x: Tensor) -> Tensor:
        """N x L x D of these images as N x D x H x W."""
        return patches.mT.reshape(len(patches), -1, *self.grid(x))


def image_arguments(
    options: VisionTransformerOptions | BeitOptions | XcitOptions | SwinTransformerOptions,
) -> dict[str, Any]:
    """What timm's constructors call the options."""
    return {
        "img_size": options.IMAGE_SIZE,
        "patch_size": options.PATCH_SIZE,
        "num_classes": 0,
        "qkv_bias": options.QKV_BIAS,
        "proj_drop_rate": options.DROPOUT_RATE,
        "attn_drop_rate": options.ATTENTION_DROPOUT_RATE,
        "drop_path_rate": options.DROP_PATH_RATE,
    }


def block_arguments(
    options: VisionTransformerOptions | BeitOptions | XcitOptions,
) -> dict[str, Any]:
    """Of networks whose blocks are all of one width."""
    return {
        "embed_dim": options.HIDDEN_DIM,
        "depth": options.NUM_LAYERS,
        "num_heads": options.NUM_HEADS,
        "pos_drop_rate": options.DROPOUT_RATE,
    }


def mlp_ratio(options: VisionTransformerOptions) -> float:
    """timm cuts width * ratio to a whole number: the half keeps it from falling one short."""
    return (options.MLP_DIM + 0.5) / options.HIDDEN_DIM


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
