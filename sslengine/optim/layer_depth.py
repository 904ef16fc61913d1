"""The depth of each parameter in the model. Layers are numbered from 0; heads are the deepest.

A timm network, or a trunk around one: timm's parameter groups (`group_matcher`)
ResNet with torchvision's names:       stem 0, layer1 to layer4 are 1 to 4, as in VISSL
Other trunks with `block_names`:       stem 0, blocks 1, 2, 3, ...

Parameters that timm groups with the classifier (ConvNeXt's last norm) have the depth of heads.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from torch import nn

from sslengine.errors import ConfigError, listing

# Of a ViT; its blocks are in no stage.
_VIT_BLOCK = re.compile(r"trunk\.(?:[a-z_]\w*\.)*blocks\.\d+\.")
_EMBEDDING = re.compile(
    r"trunk\.(?:[a-z_]\w*\.)*(?:\w+_token|\w*pos_embed|patch_embed|norm_pre)(?:\.|$)"
)
_STAGE = re.compile(r"(?:^|\.)layer(\d+)\.")
# Tokens of a ViT that are embeddings; timm's patterns lack them.
_TOKENS = ("mask_token", "reg_token")
# A name that matches none of timm's patterns: it gets the depth of the classifier.
_HEAD = "\0"


@dataclass(frozen=True)
class LayerDepth:
    depths: Mapping[str, int]  # of the trunk's parameters, by their names in the model
    heads: int
    is_vit: bool

    def find(self, name: str) -> int:
        """Return the depth of a parameter; outside the trunk it is that of heads."""
        return self.depths.get(name, self.heads)


def layer_depth(model: nn.Module) -> LayerDepth:
    """Return the depths by the first scheme that fits the model's trunk."""
    names = [name for name, _ in model.named_parameters() if name.startswith("trunk.")]
    is_vit = all(any(map(pattern.match, names)) for pattern in (_VIT_BLOCK, _EMBEDDING))
    grouped = _ask_own_matcher(model)
    if grouped is not None:
        return LayerDepth(*grouped, is_vit)
    stages = {name: int(match[1]) if (match := _STAGE.search(name)) else 0 for name in names}
    if any(stages.values()):
        return LayerDepth(stages, max(stages.values()) + 1, False)
    if blocks := getattr(getattr(model, "trunk", None), "block_names", None):
        return LayerDepth(*_number_blocks(names, blocks), is_vit=False)
    raise ConfigError(
        "OPTIMIZER.param_group_constructor: lr_decay cannot number the layers of this trunk: it "
        "is none of timm, has no layer1 ... layer4 and no `block_names`. Its parameters: "
        f"{listing(names, 5)}."
    )


def _ask_own_matcher(model: nn.Module) -> tuple[dict[str, int], int] | None:
    for prefix, module in model.named_modules():
        if prefix.split(".")[0] == "trunk" and callable(getattr(module, "group_matcher", None)):
            names = (name for name, _ in module.named_parameters())
            return _grouped(prefix, names, cast(Any, module).group_matcher(coarse=False))
    return None


def _number_blocks(names: list[str], blocks: str) -> tuple[dict[str, int], int]:
    """Number the blocks. Parameters between two blocks get the depth of the second.

    Parameters after all blocks get the depth of the last block.
    """
    pattern = re.compile(rf"trunk\.({blocks})\.")
    numbers: dict[str, int] = {}
    depths: dict[str, int] = {}
    for name in names:
        if match := pattern.match(name):
            depths[name] = numbers.setdefault(match[1], len(numbers) + 1)
        else:
            depths[name] = len(numbers) + 1 if numbers else 0
    return {name: min(depth, len(numbers)) for name, depth in depths.items()}, len(numbers) + 1


def _grouped(prefix: str, names: Iterable[str], matcher: Any) -> tuple[dict[str, int], int]:
    from timm.models._manipulate import group_with_matcher

    named = ((name, None) for name in (*names, _HEAD))
    found: dict[str, int] = group_with_matcher(named, matcher, reverse=True)
    heads = found.pop(_HEAD)
    found.update({name: 0 for name in found if name.rpartition(".")[2] in _TOKENS})
    return {f"{prefix}.{name}": depth for name, depth in found.items()}, heads
