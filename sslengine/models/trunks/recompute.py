"""Activation checkpointing: a block keeps its input alone, and is computed again in backward.

The second pass must not update the running statistics of batch norms, or they would be updated
twice per step.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import cache, partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from sslengine.errors import TrainingError


def recompute_blocks(network: nn.Module, names: str) -> bool:
    """Recompute the outermost modules whose names match from now on; tell whether there are any.

    A single layer keeps little but its input: it is left as it is.
    """
    found: list[str] = []
    for name, module in network.named_modules():
        inside = name.startswith(tuple(f"{each}." for each in found))
        if re.fullmatch(names, name) and not inside and next(module.children(), None) is not None:
            found.append(name)
            module.__class__ = _recomputing(cast(Any, type(module)))
    return bool(found)


@cache
def _recomputing(kind: type[nn.Module]) -> type[nn.Module]:
    def forward(self: nn.Module, *inputs: Any, **named: Any) -> Any:
        run = partial(cast(Any, kind).forward, self)
        if not torch.is_grad_enabled():
            return run(*inputs, **named)
        # DenseNet's blocks append to the list that they get.
        inputs = tuple(list(each) if isinstance(each, list) else each for each in inputs)
        compiled = torch.compiler.is_compiling()
        tensors = [each for each in inputs if isinstance(each, Tensor) and not compiled]
        before = [each._version for each in tensors]
        output = recomputed([self], run, *inputs, **named)
        if [each._version for each in tensors] != before:
            raise TrainingError(
                f"config.MODEL.ACTIVATION_CHECKPOINTING: a {kind.__name__} changes its input in "
                f"place, so it cannot be computed again. Set USE_ACTIVATION_CHECKPOINTING to false."
            )
        return output

    return type(kind.__name__, (kind,), {"forward": forward})


def recomputed(
    owners: Iterable[nn.Module], inside: Callable[..., Any], *inputs: Any, **named: Any
) -> Any:
    """Call `inside` under activation checkpointing.

    In a compiled function batch norms update their statistics once without `context_fn`.
    """

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return nullcontext(), StatisticsUntouched(owners)

    own: dict[str, Any] = {} if torch.compiler.is_compiling() else {"context_fn": contexts}
    return checkpoint(inside, *inputs, use_reentrant=False, **own, **named)


class StatisticsUntouched(AbstractContextManager[None]):
    """Keep running statistics unchanged: momentum is 0, and batches are counted on a copy.

    Tracking stays on, because the second forward pass must save the same tensors as the first. It
    may be entered again: each backward pass of a kept graph computes a block again.
    """

    def __init__(self, owners: Iterable[nn.Module]) -> None:
        self._norms = [
            module
            for owner in owners
            for module in owner.modules()
            if isinstance(module, _BatchNorm) and module.num_batches_tracked is not None
        ]

    def __enter__(self) -> None:
        self._kept = [(each.momentum, each.num_batches_tracked) for each in self._norms]
        for module, (_, count) in zip(self._norms, self._kept, strict=True):
            assert count is not None
            module.momentum, module.num_batches_tracked = 0.0, count.clone()

    def __exit__(self, *_: object) -> None:
        for module, (momentum, count) in zip(self._norms, self._kept, strict=True):
            module.momentum, module.num_batches_tracked = momentum, count
