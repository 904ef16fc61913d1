"""The parts of a model that are made ready one at a time: blocks, the trunk's rest, heads."""

from __future__ import annotations

import re
from collections.abc import Iterator

from torch import nn

from sslengine.models.model import Model
from sslengine.models.trunks.base import Trunk


def parts_of(model: Model, smallest_block: int = 0) -> list[nn.Module]:
    """Inner ones first; only what has parameters. Smaller blocks count with the trunk."""
    blocks = [each for each in blocks_of(model.trunk) if _size(each) >= smallest_block]
    return [each for each in (*blocks, model.trunk, *heads_of(model)) if _size(each)]


def blocks_of(trunk: Trunk) -> Iterator[nn.Module]:
    """In the order in which they were made."""
    if trunk.block_names is not None:
        for name, module in trunk.named_modules():
            if re.fullmatch(trunk.block_names, name):
                yield module


def heads_of(model: Model) -> Iterator[nn.Module]:
    """Each module of HEAD.PARAMS, also where several are a chain."""
    for head in model.heads:
        yield from head.children() if type(head) is nn.Sequential else (head,)


def _size(module: nn.Module) -> int:
    return sum(each.numel() for each in module.parameters())
