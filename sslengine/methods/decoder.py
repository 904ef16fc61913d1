"""The narrow vision transformer that fills in hidden patches: MAE's decoder, I-JEPA's predictor."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from timm.models.vision_transformer import Block
from torch import nn

from sslengine.models.trunks.patches import SinePositions
from sslengine.models.view_trunk import ViewTrunk


class HiddenPatches(nn.Module):
    """Its layers: one learned token for hidden patches, and fixed positions for all."""

    def __init__(self, trunk: ViewTrunk, width: int, layers: int, heads: int, outputs: int) -> None:
        """Make them for tokens of the trunk. outputs: how many numbers for each token."""
        super().__init__()
        network: Any = trunk.trunk
        norm: Any = partial(nn.LayerNorm, eps=1e-6)
        self.positions = SinePositions(network.patch_embed.grid_size, width)
        self.embed = nn.Linear(network.embed_dim, width)
        self.hidden_token = nn.Parameter(torch.zeros(1, 1, width))
        blocks = (Block(width, heads, qkv_bias=True, norm_layer=norm) for _ in range(layers))
        self.blocks = nn.Sequential(*blocks)
        self.norm = norm(width)
        self.project = nn.Linear(width, outputs)


def width_problems(prefix: str, width: int, heads: int) -> Iterator[str]:
    """Yield what is wrong with the options of these layers, whose names begin with the prefix."""
    if width % 4 or width % heads:
        yield f"{prefix}_dim: {width} must be a multiple of 4 and of {prefix}_heads, {heads}."
