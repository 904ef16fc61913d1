"""Rotary positions (RoPE): queries and keys of a token are rotated by angles that its place gives.

A rotation is a tensor of cosines and sines, 2 x T x width of a head; with another place for each
image 2 x N x 1 x T x width. Channel i and channel i + width / 2 are a pair.

centres         Places are the centres of patches, from -1 to 1 in each direction. Half of the pairs
                turn with the row, half with the column, once in a period of 1 to nearly ROPE_BASE.
                Tokens before the patches are not rotated. So does DINOv3.
corners         Places go from 0 at the first patch to 1 at the last. Tokens before the patches have
                places on the border of the patches that are shown. So does CAPI's paper.
corners_mixed   The same, where the two channels of a pair turn by unlike angles, one of the row and
                one of the column. So does the code of CAPI's authors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from timm.layers.attention import Attention
from timm.layers.pos_embed_sincos import RotaryEmbeddingDinoV3, make_coords_dinov3
from timm.models.vision_transformer import Block
from torch import Tensor, nn
from torch.nn import functional as F

from sslengine.models.trunks.options import VisionTransformerOptions

# With corners: the highest and lowest number of turns over the side of an image.
TURNS = 7.0, 7e-4
# Grids whose rotations are kept; of more sizes the earliest is dropped.
KEPT = 8


def rotated(x: Tensor, rotation: Tensor) -> Tensor:
    """x: N x heads x T x width."""
    cos, sin = rotation
    first, second = x.chunk(2, dim=-1)
    turned: Tensor = x * cos + torch.cat([-second, first], dim=-1) * sin
    return turned.to(x.dtype)


class RotaryBlock(Block):  # type: ignore[misc]
    """timm's block with rotary positions; its parameters have the same names."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.attn.__class__ = RotaryAttention

    def forward(self, x: Tensor, rotation: Tensor) -> Tensor:  # type: ignore[override]
        x = x + self.drop_path1(self.ls1(self.attn(self.norm1(x), rotation)))
        added: Tensor = x + self.drop_path2(self.ls2(self.mlp(self.norm2(x))))
        return added


class RotaryAttention(Attention):  # type: ignore[misc]
    def forward(self, x: Tensor, rotation: Tensor) -> Tensor:  # type: ignore[override]
        """rotation: of queries and keys."""
        parts = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        q, k, v = parts.unbind(0)
        dropout = self.attn_drop.p if self.training else 0.0
        made = F.scaled_dot_product_attention(
            rotated(q, rotation), rotated(k, rotation), v, dropout_p=dropout, scale=self.scale
        )
        mixed: Tensor = self.proj_drop(self.proj(made.transpose(1, 2).flatten(2)))
        return mixed


def make_on_device(network: Any) -> None:
    """Change the rotary positions of the network in place, if it has DINOv3's."""
    rope: Any = getattr(network, "rope", None)
    if type(rope) is RotaryEmbeddingDinoV3:
        rope.__class__ = RotaryPositions
        vars(rope)["made"] = {}


class RotaryPositions(RotaryEmbeddingDinoV3):  # type: ignore[misc]
    """DINOv3's, made on the device of the trunk, once for each size of the image.

    timm makes them on the host and copies them, in each forward pass. Where training moves places
    at random (`rope_shift_coords`, ...), the numbers are drawn on the device each time, as in the
    authors' code.
    """

    made: dict[Any, Tensor]

    def get_embed(self, shape: list[int] | None = None, dtype: Any = None) -> Tensor:
        moved = self.training and self.aug_active
        if shape is None or moved or torch.compiler.is_compiling():  # a graph may not keep tensors
            found: Tensor = super().get_embed(shape)
        else:
            found = self._kept(shape)
        return found if dtype is None else found.to(dtype)

    def _kept(self, shape: list[int]) -> Tensor:
        key = (*shape, self.periods.device, self.periods.dtype)
        if key not in self.made:
            if len(self.made) >= KEPT:
                del self.made[next(iter(self.made))]
            with torch.inference_mode(False):  # training may use it later
                self.made[key] = self._create_embed(shape, no_aug=True)
        return self.made[key]

    def _create_embed(self, feat_shape: list[int], no_aug: bool = False) -> Tensor:
        how = self.normalize_coords, self.grid_indexing, self.grid_offset
        places = make_coords_dinov3(*feat_shape, *how, self.periods.device)
        if self.training and self.aug_active and not no_aug:
            places = self._moved(places)
        return torch.cat(self._get_pos_embed_from_coords(places), dim=-1)

    def _moved(self, places: Tensor) -> Tensor:
        """Draw a shift and a scale for each axis, and a scale for both."""
        if self.shift_coords is not None:
            places = places + places.new_empty(2).uniform_(-self.shift_coords, self.shift_coords)
        for most, axes in ((self.jitter_coords, 2), (self.rescale_coords, 1)):
            if most is not None:
                places = (
                    places * places.new_empty(axes).uniform_(-math.log(most), math.log(most)).exp()
                )
        return places


class CentreRotations(RotaryPositions):
    """Rotations of ROPE: centres."""

    def __init__(self, width: int, options: VisionTransformerOptions) -> None:
        super().__init__(
            width,
            options.ROPE_BASE,
            shift_coords=options.ROPE_SHIFT or None,
            jitter_coords=options.ROPE_JITTER or None,
            rescale_coords=options.ROPE_RESCALE or None,
        )
        self.made = {}

    def rotate_tokens(self, grid: Sequence[int], shown: Tensor | None, before: int) -> Tensor:
        """Return the rotations of all tokens.

        grid: rows and columns of patches. before: how many tokens precede the patches.
        """
        sin, cos = self.get_embed(list(grid)).chunk(2, dim=-1)
        table = torch.stack([cos, sin])
        if shown is not None:
            table = table[:, shown].unsqueeze(2)
        ones = table.new_ones(*table.shape[1:-2], before, table.shape[-1])
        still = torch.stack([ones, torch.zeros_like(ones)])
        rotations: Tensor = torch.cat([still, table], dim=-2)
        return rotations


class CornerRotations(nn.Module):
    """Rotations of ROPE: corners and corners_mixed."""

    frequencies: Tensor  # in float64, until it is moved

    def __init__(self, width: int, mixed: bool) -> None:
        super().__init__()
        self.register_buffer("frequencies", axial_frequencies(width, mixed), persistent=False)

    def rotate_tokens(self, grid: Sequence[int], shown: Tensor | None, before: int) -> Tensor:
        if shown is None:
            shown = torch.arange(grid[0] * grid[1], device=self.frequencies.device).unsqueeze(0)
        places = self.places(shown, grid)
        rotations: Tensor = self(torch.cat([around(places, before), places], dim=1))
        return rotations

    def places(self, patches: Tensor, grid: Sequence[int]) -> Tensor:
        """Row and column of each patch, from 0 to 1: N x K to N x K x 2."""
        row, column = patches // grid[1], patches % grid[1]
        ends = (max(1, side - 1) for side in grid)
        like = self.frequencies.dtype
        return torch.stack([at.to(like) / end for at, end in zip((row, column), ends)], dim=-1)

    def forward(self, places: Tensor) -> Tensor:
        """N x T x 2 to 2 x N x 1 x T x width; not by a product of matrices, which autocast would
        round."""
        angles = (places.unsqueeze(-1) * self.frequencies).sum(dim=-2).unsqueeze(1)
        return torch.stack([angles.cos(), angles.sin()])


def axial_frequencies(width: int, mixed: bool) -> Tensor:
    """2 x width: the angles of a head's channels at the last row and at the last column."""
    high, low = TURNS
    steps = torch.linspace(0, -1, width // 4, dtype=torch.float64)
    each = 2 * math.pi * high * (high / low) ** steps
    none = torch.zeros_like(each)
    if mixed:
        axes = [each, each, none, none], [none, none, each, each]
    else:
        axes = [each, none, each, none], [none, each, none, each]
    return torch.stack([torch.cat(axis) for axis in axes])


def around(places: Tensor, count: int) -> Tensor:
    """N x count x 2: evenly spaced along the border of the places' box."""
    low, high = places.amin(dim=1, keepdim=True), places.amax(dim=1, keepdim=True)
    along = torch.arange(count, device=places.device, dtype=places.dtype) * 4 / max(1, count)
    row = torch.minimum(along, 3 - along).clamp(0, 1)
    column = torch.minimum(along - 1, 4 - along).clamp(0, 1)
    return low + torch.stack([row, column], dim=-1) * (high - low)
