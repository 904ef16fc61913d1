"""The parts of a model that are compiled or sharded separately: blocks, the trunk, heads.

torch.compile works in place: names in the state dict do not change, and module hooks still run.
Only `forward` is compiled. `Module.compile` would compile the hooks too, and torch would not
notice hooks that are registered or removed later.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from types import MethodType
from typing import Any

import torch
from torch import nn

from sslengine.models.model import Model
from sslengine.models.options import CompileOptions
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


def compile_forward(module: nn.Module, options: CompileOptions) -> None:
    """Compile `forward`; the first call is slow. A deep copy of the module compiles its own."""
    # torch triggers this warning itself when it inspects the inputs.
    warnings.filterwarnings("ignore", message="The .grad attribute of a Tensor that is not a leaf")
    module.__dict__["forward"] = CompiledForward(module, options)


class CompiledForward:
    def __init__(self, module: nn.Module, options: CompileOptions) -> None:
        self._module, self._options = module, options
        mode = None if options.MODE == "default" else options.MODE
        forward = MethodType(type(module).forward, module)
        self._compiled: Any = torch.compile(forward, backend=options.BACKEND, mode=mode)

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        return self._compiled(*inputs, **named)

    def __deepcopy__(self, memo: dict[int, Any]) -> CompiledForward:
        """Compile the copied module: otherwise the copy would use this module's weights."""
        return CompiledForward(memo[id(self._module)], self._options)
