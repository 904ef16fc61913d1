"""torch.compile in place: names in the state dict do not change, and module hooks still run.

Only `forward` is compiled. `Module.compile` would compile the hooks too, and torch would not
notice hooks that are registered or removed later.
"""

from __future__ import annotations

import warnings
from types import MethodType
from typing import Any

import torch
from torch import nn

from sslengine.models.options import CompileOptions


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
