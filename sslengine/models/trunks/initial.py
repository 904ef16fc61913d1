"""Initial weights of a vision transformer, where authors have others than timm.

timm        maps: normal, 0.02, cut at two; the map of patches as torch makes convolutions
rescaled    I-JEPA's: the map of patches too; in block i, from 1, the last maps of attention
            and MLP are then divided by sqrt(2 i), so that the sum over blocks stays small
xavier      CAPI's: uniform within sqrt(6 / (inputs + outputs)), of queries, keys and values
            separately; registers: normal, 0.02, so that no two begin equal
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

RESCALED, XAVIER = "rescaled", "xavier"


@torch.no_grad()
def set_initial_weights(trunk: Any, kind: str) -> None:
    """trunk: with the weights of timm."""
    if kind == RESCALED:
        for each in _convolutions(trunk):
            nn.init.trunc_normal_(each.weight, std=0.02)
            if each.bias is not None:
                nn.init.zeros_(each.bias)
        rescale_blocks(trunk.blocks)
    elif kind == XAVIER:
        for each in _convolutions(trunk):
            nn.init.xavier_uniform_(each.weight.flatten(1))
        for name, each in trunk.blocks.named_modules():
            if isinstance(each, nn.Linear):
                _xavier(each, maps=3 if name.endswith("qkv") else 1)
        if trunk.reg_token is not None:
            nn.init.normal_(trunk.reg_token, std=0.02)


@torch.no_grad()
def rescale_blocks(blocks: Iterable[Any]) -> None:
    """Divide the last maps of attention and MLP of block i, from 1, by sqrt(2 i)."""
    for number, block in enumerate(blocks, start=1):
        for each in (block.attn.proj, block.mlp.fc2):
            each.weight.div_(math.sqrt(2 * number))


def _convolutions(trunk: Any) -> list[nn.Conv2d]:
    return [each for each in trunk.patch_embed.modules() if isinstance(each, nn.Conv2d)]


def _xavier(linear: nn.Linear, maps: int) -> None:
    for each in linear.weight.chunk(maps):
        nn.init.xavier_uniform_(each)
