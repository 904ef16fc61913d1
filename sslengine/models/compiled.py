"""torch.compile in place: names in the state dict stay, hooks on the module run as ever.

Only `forward` is compiled. `Module.compile` would take the hooks with it, and torch does not
look whether there are other hooks later on.
"""

from __future__ import annotations

import warnings
from types import MethodType
from typing import Any

import torch
from torch import nn

from sslengine.models.options import CompileOptions


def compile_forward(module: nn.Module, options: CompileOptions) -> None:
    """Before the first call, which is slow. A deep copy of the module is compiled for itself."""
    # What torch says to itself while it looks at the inputs.
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
        """Of the module that is being copied: else the copy would compute with our weights."""
        return CompiledForward(memo[id(self._module)], self._options)
