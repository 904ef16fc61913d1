"""The number of this process (rank) and the number of processes (world size)."""

from __future__ import annotations

import os

import torch.distributed as dist

_AVAILABLE = dist.is_available()  # in this build of torch


def initialized() -> bool:
    return _AVAILABLE and dist.is_initialized()


def rank() -> int:
    return dist.get_rank() if initialized() else 0


def world_size() -> int:
    return dist.get_world_size() if initialized() else 1


def local_rank() -> int:
    """The rank among the processes of this node, which is also the index of its GPU."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def is_primary() -> bool:
    """Is this rank 0, which prints and writes?"""
    return rank() == 0
