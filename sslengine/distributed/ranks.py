"""Who am I among the processes of this run?"""

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
    """The rank among the processes of this node, which is also the GPU's number."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def is_primary() -> bool:
    """Rank 0: the one that prints and writes."""
    return rank() == 0
