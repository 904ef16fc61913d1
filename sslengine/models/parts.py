"""The parts of a model that are compiled or sharded separately: blocks, the trunk, heads."""

from __future__ import annotations

import re
from collections.abc import Iterator

from torch import nn

from sslengine.models.model import Model
from sslengine.models.trunks.base import Trunk


def parts_of(model: Model, smallest_block: int = 0) -> list[nn.Module]:
    """Return blocks, trunk and heads that have parameters, in that order.

    Blocks with fewer parameters than `smallest_block` are left to the trunk.
    """
    blocks = [each for each in blocks_of(model.trunk) if _size(each) >= smallest_block]
    return [each for each in (*blocks, model.trunk, *heads_of(model)) if _size(each)]


def blocks_of(trunk: Trunk) -> Iterator[nn.Module]:
    """Yield the trunk's blocks in the order of `named_modules`."""
    if trunk.block_names is not None:
        for name, module in trunk.named_modules():
            if re.fullmatch(trunk.block_names, name):
                yield module


def heads_of(model: Model) -> Iterator[nn.Module]:
    """Yield each module of HEAD.PARAMS; of a chain, each of its modules."""
    for head in model.heads:
        yield from head.children() if type(head) is nn.Sequential else (head,)


def _size(module: nn.Module) -> int:
    return sum(each.numel() for each in module.parameters())
