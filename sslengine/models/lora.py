"""LoRA: a trunk stays unchanged, and small matrices next to its linear layers are trained
(`MODEL.LORA`; Hu et al., 2106.09685).

    y = W x + b + alpha / rank * B A x      A: rank x inputs, drawn; B: outputs x rank, 0 at first

So the network begins as the one that it adapts. W and b keep their names, such as
`blocks.0.attn.qkv.weight`; next to them are `lora_A`, `lora_B` and `lora_scale`, which is
alpha / rank. A copy of the trunk, such as a teacher, has its own. Exported is W with what is added,
and another run starts from that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sslengine.errors import ConfigError, listing
from sslengine.models.options import LoraOptions

OWN = ".lora_"  # in the names of what is trained


class LoraLinear(nn.Linear):
    lora_A: nn.Parameter
    lora_B: nn.Parameter
    lora_scale: Tensor

    def forward(self, input: Tensor) -> Tensor:
        low = F.linear(F.linear(input, self.lora_A), self.lora_B)
        return super().forward(input) + self.lora_scale * low


def add_lora(trunk: Any, options: LoraOptions) -> None:
    """Freeze the trunk, and adapt the linear layers whose names end in one of LAYERS."""
    linear = {f".{name}": each for name, each in trunk.named_modules() if type(each) is nn.Linear}
    ends = tuple(f".{each}" for each in options.LAYERS)
    chosen = [each for name, each in linear.items() if name.endswith(ends)]
    if not chosen:
        known = sorted({name.rpartition(".")[2] for name in linear})
        raise ConfigError(
            f"config.MODEL.LORA.LAYERS: {type(trunk).__name__} has no linear layer whose name ends "
            f"in {listing(options.LAYERS)}; it has {listing(known) or 'none'}."
        )
    trunk.requires_grad_(False)
    for module in trunk.modules():
        if hasattr(module, "qkv_bias_separate"):  # else timm reads the weight past the layer
            module.qkv_bias_separate = True
    for layer in chosen:
        weight = layer.weight
        layer.__class__ = LoraLinear
        layer.lora_A = nn.Parameter(weight.new_empty(options.RANK, layer.in_features))
        layer.lora_B = nn.Parameter(weight.new_zeros(layer.out_features, options.RANK))
        layer.register_buffer("lora_scale", weight.new_tensor(options.ALPHA / options.RANK))
        nn.init.kaiming_uniform_(layer.lora_A, a=math.sqrt(5))


@torch.no_grad()
def merge_lora(trunk: Any) -> None:
    """Turn adapted layers into plain ones that compute the same."""
    adapted = [each for each in trunk.modules() if isinstance(each, LoraLinear)]
    merged = merge_lora_tensors(trunk.state_dict()) if adapted else {}
    for layer in adapted:
        del layer.lora_A, layer.lora_B, layer.lora_scale
        layer.__class__ = nn.Linear  # type: ignore[assignment]
    if adapted:
        trunk.load_state_dict(merged)


def merge_lora_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of an adapted network as those of the plain one."""
    merged = {name: each for name, each in tensors.items() if OWN not in name}
    for name in tensors.keys() - merged.keys():
        if name.endswith("lora_A"):
            layer = name.removesuffix("lora_A")
            low = tensors[f"{layer}lora_B"] @ tensors[name]
            merged[f"{layer}weight"] = (
                merged[f"{layer}weight"] + tensors[f"{layer}lora_scale"] * low
            )
    return merged
