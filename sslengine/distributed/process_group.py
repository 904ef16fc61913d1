"""Joining the other processes, leaving them, and smaller groups among them."""

from __future__ import annotations

import datetime
import os
import time
from typing import cast

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from torch.distributed.rendezvous import rendezvous

from sslengine.distributed.ranks import initialized, rank, world_size
from sslengine.errors import LaunchError

Group = dist.ProcessGroup


def join(
    backend: str, device: torch.device, timeout_minutes: float, init_method: str = "env://"
) -> None:
    """Join the run that the environment (RANK, WORLD_SIZE, MASTER_ADDR ...) describes."""
    if backend == "nccl" and device.type != "cuda":
        backend = "gloo"
    timeout = datetime.timedelta(minutes=timeout_minutes)
    store, rank, world_size = next(rendezvous(init_method, timeout=timeout))
    # An elastic agent's store outlives the attempt that failed: without a prefix of its own
    # the next one would find the addresses of ranks that have ended.
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    dist.init_process_group(
        backend,
        store=c10d.PrefixStore(f"attempt/{attempt}", store),
        rank=rank,
        world_size=world_size,
        timeout=timeout,
        device_id=device if backend == "nccl" else None,
    )


def own_store(prefix: str) -> c10d.Store:
    """The group's store, for a thread. On a connection of its own where torch can open one
    (2.7 and later): in a shared one it would wait whenever the main thread does.
    """
    store = c10d._get_default_store()
    clone = getattr(store, "clone", None)
    return c10d.PrefixStore(prefix, clone() if clone is not None else store)


def leave() -> None:
    if initialized():
        # gloo's threads let go of the last collective's tensors, for which they need the
        # interpreter's lock; torch 2.6 waits for these threads while it holds it, for ever.
        time.sleep(0.1)
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
