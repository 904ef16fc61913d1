"""Functions that the trunks on patches of images share."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import torch
from timm.layers.drop import DropPath
from timm.layers.pos_embed import resample_abs_pos_embed
from torch import Tensor, nn
from torch.nn.functional import interpolate

from sslengine.errors import ConfigError
from sslengine.models.trunks.library import LibraryTrunk
from sslengine.models.trunks.options import (
    BlockOptions,
    PatchOptions,
    VisionTransformerOptions,
)
from sslengine.precision import widest

Grid = tuple[int, int]  # rows, columns


class PatchTrunk(LibraryTrunk):
    patch_size: int

    def features(self, x: Tensor, wanted: Collection[str], **extra: Tensor) -> dict[str, Tensor]:
        self.grid(x)
        return super().features(x, wanted, **extra)

    def grid(self, x: Tensor) -> tuple[int, int]:
        return patch_grid(x, self.patch_size, self.section.rpartition(".")[2])

    def make_map(self, patches: Tensor, x: Tensor) -> Tensor:
        """Reshape tokens N x L x D of images x to N x D x H x W."""
        return patches.mT.reshape(len(patches), -1, *self.grid(x))


def image_design(options: PatchOptions) -> dict[str, Any]:
    """Return arguments of timm's networks on patches that say which network it is."""
    return {
        "img_size": options.IMAGE_SIZE,
        "patch_size": options.PATCH_SIZE,
        "qkv_bias": options.QKV_BIAS,
    }


def block_design(options: BlockOptions) -> dict[str, Any]:
    """Return the same of networks whose blocks all have one width."""
    return {
        **image_design(options),
        "embed_dim": options.HIDDEN_DIM,
        "depth": options.NUM_LAYERS,
        "num_heads": options.NUM_HEADS,
    }


def drop_rates(options: PatchOptions, **more: float) -> dict[str, Any]:
    """Return the arguments that count in training alone."""
    return {
        "proj_drop_rate": options.DROPOUT_RATE,
        "attn_drop_rate": options.ATTENTION_DROPOUT_RATE,
        "drop_path_rate": options.DROP_PATH_RATE,
        **more,
    }


def mlp_ratio(options: VisionTransformerOptions) -> float:
    """Return timm's mlp_ratio. timm cuts width * ratio to a whole number."""
    width = 2 * options.MLP_DIM if options.SWIGLU else options.MLP_DIM  # timm counts both halves
    exact = width / options.HIDDEN_DIM
    return exact if int(options.HIDDEN_DIM * exact) == width else (width + 0.5) / options.HIDDEN_DIM


def patch_grid(x: Tensor, patch_size: int, section: str = "") -> tuple[int, int]:
    """Return the number of patches (vertical, horizontal); ConfigError if it is no integer.

    section: of the trunk's options.
    """
    height, width = x.shape[-2:]
    if height % patch_size or width % patch_size:
        where = f"config.MODEL.TRUNK.{section}.PATCH_SIZE" if section else "config.MODEL.TRUNK"
        raise ConfigError(
            f"{where}: {patch_size} does not divide images of {height} x {width}; resize or crop "
            f"them in DATA."
        )
    return height // patch_size, width // patch_size


def set_attention_scale(attentions: Iterable[Any], scale: float) -> None:
    """Set the factor on queries times keys, which is 1 / sqrt(width of a head) by default."""
    for attention in attentions:
        # timm calls the fused kernel with the default scale, and ignores `scale`.
        attention.fused_attn, attention.scale = False, scale


def set_drop_path(network: nn.Module, rate: float) -> None:
    """Give all residual branches one rate of stochastic depth."""
    for block in network.modules():
        for name in ("drop_path", "drop_path1", "drop_path2"):
            if isinstance(getattr(block, name, None), (DropPath, nn.Identity)):
                setattr(block, name, DropPath(rate))


def split_patches(images: Tensor, size: int) -> Tensor:
    """Reshape N x C x H x W to N x L x (size * size * C), row by row."""
    count, channels, height, width = images.shape
    cut = images.reshape(count, channels, height // size, size, width // size, size)
    return cut.permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)


def join_patches(patches: Tensor, size: int, shape: torch.Size) -> Tensor:
    """The inverse of split_patches, for images of that shape."""
    count, channels, height, width = shape
    cut = patches.reshape(count, height // size, width // size, size, size, channels)
    return cut.permute(0, 5, 1, 3, 2, 4).reshape(shape)


def sine_positions(
    rows: int, columns: int, width: int, device: torch.device | None = None
) -> Tensor:
    """Return sine-cosine position embeddings, (rows * columns) x width.

    A quarter of the width each: sine of the column, cosine of it, sine of the row, cosine of it.
    """
    wide = torch.float64 if device is None else widest(device)
    make: dict[str, Any] = {"dtype": wide, "device": device}
    steps = torch.arange(width // 4, **make) / (width // 4)
    frequencies = 10_000.0**-steps
    across = torch.arange(columns, **make).outer(frequencies)
    down = torch.arange(rows, **make).outer(frequencies)
    across, down = across.repeat(rows, 1), down.repeat_interleave(columns, dim=0)
    return torch.cat([across.sin(), across.cos(), down.sin(), down.cos()], dim=1).float()


def fix_positions(trunk: Any, side: int) -> None:
    """Replace the learned position embeddings of side * side patches by sines and cosines."""
    positions = trunk.pos_embed
    with torch.no_grad():
        positions.zero_()  # the class token has no position
        positions[0, -side * side :] = sine_positions(side, side, trunk.embed_dim)
    positions.requires_grad_(False)


class SinePositions(nn.Module):
    """Sine-cosine position embeddings of one grid of patches, made once; others when needed."""

    def __init__(self, grid: tuple[int, int], width: int) -> None:
        super().__init__()
        self.grid = grid
        self.table: Tensor
        self.register_buffer("table", sine_positions(*grid, width), persistent=False)

    def forward(self, grid: tuple[int, int]) -> Tensor:
        if grid == self.grid:
            return self.table
        made = sine_positions(*grid, self.table.shape[-1], device=self.table.device)
        return made.to(self.table.dtype)


def resampled(positions: Tensor, old: Grid, new: Grid, before: int = 0) -> Tensor:
    """Resize learned positions, 1 x (before + patches) x D, to another number of patches.

    Bicubically and smoothed, as timm does it. The gradient of that has no deterministic kernel on a
    GPU: where torch is to be deterministic, the same is a product of matrices.
    before: tokens ahead of the patches, which are kept.
    """
    if not torch.are_deterministic_algorithms_enabled() or old == new:
        made: Tensor = resample_abs_pos_embed(positions, [*new], [*old], num_prefix_tokens=before)
        return made
    # Not in float32, which a GPU may round to TF32, and autocast to bfloat16.
    wide = positions[0, before:].to(widest(positions.device)).unflatten(0, old)
    rows, columns = (_matrix(*sides, wide) for sides in zip(old, new, strict=True))
    patches = torch.einsum("ih,hwd,jw->ijd", rows, wide, columns).flatten(0, 1)
    return torch.cat([positions[:, :before], patches[None].to(positions.dtype)], dim=1)


def _matrix(old: int, new: int, like: Tensor) -> Tensor:
    """Return new x old: what each of `new` places takes of each of `old` ones."""
    each_alone = torch.eye(old, dtype=like.dtype, device=like.device)[None, None]
    return interpolate(each_alone, (new, old), mode="bicubic", antialias=True)[0, 0]
