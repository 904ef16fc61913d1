"""How deep in the model does a parameter stand? Read from its name alone.

ViT with timm's names:          embeddings 0, blocks.i is i + 1, the rest of the trunk
                                as its last block
ResNet with torchvision's:      stem 0, layer1 to layer4 are 1 to 4
heads:                          one more than the last layer of the trunk
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from sslengine.errors import ConfigError

_BLOCK = re.compile(r"(?:^|\.)blocks\.(\d+)\.")
_NESTED_BLOCK = re.compile(r"(?:^|\.)\w+\.\d+\.blocks\.\d+\.")
_EMBEDDING = re.compile(r"(?:^|\.)(?:\w+_token|\w*pos_embed|patch_embed|norm_pre)(?:\.|$)")
_STAGE = re.compile(r"(?:^|\.)layer(\d+)\.")


@dataclass(frozen=True)
class LayerDepth:
    """Depths from 0 to `last` in the trunk."""

    is_vit: bool
    last: int

    def of(self, name: str) -> int:
        """`name` as in `model.named_parameters()`: trunk.blocks.3.attn.qkv.weight"""
        if not name.startswith("trunk."):
            return self.last + 1
        layer = (_BLOCK if self.is_vit else _STAGE).search(name)
        if self.is_vit:
            if layer:
                return int(layer[1]) + 1
            return 0 if _EMBEDDING.search(name) else self.last
        return int(layer[1]) if layer else 0


def layer_depth(names: Sequence[str]) -> LayerDepth:
    """The scheme that fits a model with these parameter names."""
    trunk = [name for name in names if name.startswith("trunk.")]
    blocks = [int(match[1]) for name in trunk if (match := _BLOCK.search(name))]
    nested = any(_NESTED_BLOCK.search(name) for name in trunk)
    if blocks and not nested and any(_EMBEDDING.search(name) for name in trunk):
        return LayerDepth(is_vit=True, last=max(blocks) + 1)
    stages = [int(match[1]) for name in trunk if (match := _STAGE.search(name))]
    if stages:
        return LayerDepth(is_vit=False, last=max(stages))
    raise ConfigError(
        "OPTIMIZER.param_group_constructor: lr_decay reads layers from parameter names, either "
        "blocks.0, blocks.1 ... beside patch_embed and pos_embed, or layer1 ... layer4; this "
        f"trunk has neither. Its first names are: {', '.join(trunk[:5]) or 'none'}."
    )
