"""Joining the other processes, leaving them, and smaller groups among them."""

from __future__ import annotations

import datetime
from typing import cast

import torch
import torch.distributed as dist

from sslengine.distributed.ranks import initialized, rank, world_size
from sslengine.errors import LaunchError

Group = dist.ProcessGroup


def join(
    backend: str, device: torch.device, timeout_minutes: float, init_method: str = "env://"
) -> None:
    """Join the run that the environment (RANK, WORLD_SIZE, MASTER_ADDR ...) describes."""
    if backend == "nccl" and device.type != "cuda":
        backend = "gloo"
    dist.init_process_group(
        backend,
        init_method=init_method,
        timeout=datetime.timedelta(minutes=timeout_minutes),
        device_id=device if backend == "nccl" else None,
    )


def leave() -> None:
    if initialized():
        dist.destroy_process_group()


def neighbours(size: int) -> Group | None:
    """My group of `size` consecutive ranks; None stands for all ranks.

    Collective: every rank takes part in making every group.
    """
    if size <= 0 or size >= world_size():
        return None
    if world_size() % size:
        raise LaunchError(
            f"{world_size()} ranks cannot be split into groups of {size}: the group size "
            f"(MODEL.SYNC_BN_CONFIG.GROUP_SIZE) must divide the number of ranks."
        )
    mine = None
    for first in range(0, world_size(), size):
        members = list(range(first, first + size))
        group = dist.new_group(members)
        if rank() in members:
            mine = group
    return cast(Group, mine)
