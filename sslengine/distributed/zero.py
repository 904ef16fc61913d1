"""Optimizer state split over ranks (ZeRO stage 1), by torch's own implementation."""

from __future__ import annotations

from typing import Any

from torch import optim
from torch.distributed.optim import ZeroRedundancyOptimizer

from sslengine.distributed.ranks import rank


def shard_optimizer(
    groups: list[dict[str, Any]], optimizer_class: type[optim.Optimizer], **arguments: Any
) -> optim.Optimizer:
    """An optimizer that keeps the state of its share of the parameters alone."""
    return ZeroRedundancyOptimizer(groups, optimizer_class=optimizer_class, **arguments)


def whole_state(optimizer: optim.Optimizer) -> dict[str, Any]:
    """The state dict for a checkpoint. Collective with ZeRO: the shares meet on rank 0."""
    if isinstance(optimizer, ZeroRedundancyOptimizer):
        optimizer.consolidate_state_dict(to=0)
        return optimizer.state_dict() if rank() == 0 else {}
    return optimizer.state_dict()
