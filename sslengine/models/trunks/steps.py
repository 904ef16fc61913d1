"""A trunk as steps in a row: run them, pick features on the way, recompute them if memory is short.

Activation checkpointing keeps what passes between parts of the row; what is inside a
part is computed a second time in the backward pass. That second time must leave the
running statistics of batch norms alone, or they would move twice per step.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from sslengine.models.trunks.base import Trunk

# The name of the feature that the step ends with ("" if none), and the step.
Step = tuple[str, Callable[[Tensor], Tensor]]


class StepTrunk(Trunk):
    """A trunk that is one row of steps."""

    # To recompute in the backward pass; 0: none, everything is kept.
    parts: int = 0

    def checkpoint_activations(self, parts: int) -> None:
        self.parts = parts

    def run_steps(
        self, steps: Sequence[Step], x: Tensor, wanted: Collection[str]
    ) -> dict[str, Tensor]:
        """The wanted features, with activation checkpointing where it was asked for."""
        if self.parts and torch.is_grad_enabled():
            return run_in_parts(steps, x, wanted, self.parts, owner=self)
        return run(steps, x, wanted)


def run(steps: Sequence[Step], x: Tensor, wanted: Collection[str]) -> dict[str, Tensor]:
    """The wanted features; steps behind the last of them do not run."""
    return _run(_until_last(steps, wanted), x, wanted)[1]


def run_in_parts(
    steps: Sequence[Step], x: Tensor, wanted: Collection[str], parts: int, owner: nn.Module
) -> dict[str, Tensor]:
    """The same with activation checkpointing. `owner` is the module that the steps belong to."""
    steps = [single for step in steps for single in _singles(step)]
    steps = _until_last(steps, wanted)

    found: dict[str, Tensor] = {}
    for part in _split(steps, parts):
        x, inside = recomputed(owner, _run, part, x, wanted)
        found.update(inside)
    return found


def _run(
    steps: Sequence[Step], x: Tensor, wanted: Collection[str]
) -> tuple[Tensor, dict[str, Tensor]]:
    found = {}
    for name, step in steps:
        x = step(x)
        if name in wanted:
            found[name] = x
    return x, found


def _until_last(steps: Sequence[Step], wanted: Collection[str]) -> Sequence[Step]:
    return steps[: 1 + max(index for index, (name, _) in enumerate(steps) if name in wanted)]


def _singles(step: Step) -> list[Step]:
    """The blocks of a stage as steps of their own; the feature is that of the last."""
    name, module = step
    if not isinstance(module, nn.Sequential):
        return [step]
    *inner, last = module
    return [*(("", block) for block in inner), (name, last)]


def _split(steps: Sequence[Step], parts: int) -> list[Sequence[Step]]:
    """In order, of nearly equal lengths, none empty."""
    parts = min(parts, len(steps))
    bounds = [len(steps) * part // parts for part in range(parts + 1)]
    return [steps[start:stop] for start, stop in pairwise(bounds)]


def recomputed(owner: nn.Module, inside: Callable[..., Any], *inputs: Any, **named: Any) -> Any:
    """What it gives; nothing inside it is kept. A compiled one tracks statistics once anyway."""

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return nullcontext(), statistics_untouched(owner)

    own: dict[str, Any] = {} if torch.compiler.is_compiling() else {"context_fn": contexts}
    return checkpoint(inside, *inputs, use_reentrant=False, **own, **named)


@contextmanager
def statistics_untouched(owner: nn.Module) -> Iterator[None]:
    """Batch norms move what they track by nothing, and count on a copy.

    They continue tracking: the second forward must save the same tensors as the first.
    """
    tracking = [
        (module, module.momentum, module.num_batches_tracked)
        for module in owner.modules()
        if isinstance(module, _BatchNorm) and module.num_batches_tracked is not None
    ]
    for module, _, count in tracking:
        module.momentum, module.num_batches_tracked = 0.0, count.clone()
    try:
        yield
    finally:
        for module, momentum, count in tracking:
            module.momentum, module.num_batches_tracked = momentum, count
