"""timm's transformer block with rotary positions; its parameters have the same names."""

from __future__ import annotations

from typing import Any

from timm.layers.attention import Attention
from timm.models.vision_transformer import Block
from torch import Tensor
from torch.nn import functional as F

from sslengine.models.trunks.rotations import rotated


class RotaryBlock(Block):  # type: ignore[misc]
    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.attn.__class__ = RotaryAttention

    def forward(self, x: Tensor, rotation: Tensor) -> Tensor:  # type: ignore[override]
        x = x + self.drop_path1(self.ls1(self.attn(self.norm1(x), rotation)))
        added: Tensor = x + self.drop_path2(self.ls2(self.mlp(self.norm2(x))))
        return added


class RotaryAttention(Attention):  # type: ignore[misc]
    def forward(self, x: Tensor, rotation: Tensor) -> Tensor:  # type: ignore[override]
        """rotation: of queries and keys, see rotations.py."""
        parts = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        q, k, v = parts.unbind(0)
        dropout = self.attn_drop.p if self.training else 0.0
        made = F.scaled_dot_product_attention(
            rotated(q, rotation), rotated(k, rotation), v, dropout_p=dropout, scale=self.scale
        )
        mixed: Tensor = self.proj_drop(self.proj(made.transpose(1, 2).flatten(2)))
        return mixed
