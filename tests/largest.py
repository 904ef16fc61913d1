"""The largest tensor that some code makes, so that a test can say what never comes to be."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


class Largest(TorchDispatchMode):
    """with Largest() as made: ...; made.elements"""

    elements = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        sizes = [each.numel() for each in tree_iter(result) if isinstance(each, Tensor)]
        self.elements = max([self.elements, *sizes])
        return result
