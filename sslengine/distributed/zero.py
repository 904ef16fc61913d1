"""Optimizer state sharded over ranks (ZeRO stage 1), with torch's implementation.

torch.distributed.optim is imported on first use: it imports torch's modules for sharded models.
"""

from __future__ import annotations

import sys
from typing import Any

from torch import optim

from sslengine.distributed.ranks import rank


def shard_optimizer(
    groups: list[dict[str, Any]], optimizer_class: type[optim.Optimizer], **arguments: Any
) -> optim.Optimizer:
    """An optimizer that keeps the state of this rank's share of the parameters only."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    return ZeroRedundancyOptimizer(groups, optimizer_class=optimizer_class, **arguments)


def whole_state(optimizer: optim.Optimizer) -> dict[str, Any]:
    """The state dict for a checkpoint. Collective with ZeRO: rank 0 gathers the shards."""
    zero = sys.modules.get("torch.distributed.optim")
    if zero is not None and isinstance(optimizer, zero.ZeroRedundancyOptimizer):
        optimizer.consolidate_state_dict(to=0)
        return optimizer.state_dict() if rank() == 0 else {}
    return optimizer.state_dict()
