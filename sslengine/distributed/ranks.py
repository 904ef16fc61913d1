"""The number of this process (rank), the number of processes (world size), and the device."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist

from sslengine.errors import LaunchError

_AVAILABLE = dist.is_available()  # in this build of torch


def initialized() -> bool:
    return _AVAILABLE and dist.is_initialized()


def rank() -> int:
    return dist.get_rank() if initialized() else 0


def world_size() -> int:
    return dist.get_world_size() if _AVAILABLE and dist.is_initialized() else 1


def local_rank() -> int:
    """Return the rank among the processes of this node, which is also the index of its GPU."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def is_primary() -> bool:
    """Return whether this is rank 0, which prints and writes."""
    return rank() == 0


def pick_device(name: str) -> torch.device:
    """Return the device that this process computes on. name: config.MACHINE.DEVICE."""
    if name == "auto":
        name = found_device(int(os.environ.get("WORLD_SIZE", "1")))
    if name == "cpu":
        return torch.device("cpu")
    if name == "mps" and has_mps():
        return torch.device("mps")
    count = gpu_count() if name == "gpu" else 0
    if count == 0:
        raise LaunchError(
            f"config.MACHINE.DEVICE is {name}, but torch finds no such GPU on this machine. "
            f"Set config.MACHINE.DEVICE=auto (here that is {found_device()})."
        )
    if local_rank() >= count:
        raise LaunchError(
            f"this is rank {local_rank()} of its node, which has {count} GPUs. "
            f"Set config.DISTRIBUTED.NUM_PROC_PER_NODE={count} or fewer."
        )
    device = torch.device("cuda", local_rank())
    torch.cuda.set_device(device)
    return device


def found_device(processes: int = 1) -> str:
    """Return what `auto` is for a run of so many processes: gpu, mps (Apple's), or cpu."""
    if gpu_count():
        return "gpu"
    return "mps" if has_mps() and processes == 1 else "cpu"


def gpu_count() -> int:
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def has_mps() -> bool:
    """Return whether torch finds Apple's GPU."""
    return torch.backends.mps.is_available()
