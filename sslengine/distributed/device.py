"""The device that this process computes on."""

from __future__ import annotations

import os

import torch

from sslengine.distributed.ranks import local_rank
from sslengine.errors import LaunchError


def pick_device(name: str) -> torch.device:
    """name: the value of config.MACHINE.DEVICE."""
    if name == "auto":
        name = found_device(int(os.environ.get("WORLD_SIZE", "1")))
    if name == "cpu":
        return torch.device("cpu")
    if name == "mps":
        return _apple()
    count = gpu_count()
    if count == 0:
        hint = "mps (Apple's GPU)" if has_mps() else "cpu"
        raise LaunchError(
            f"config.MACHINE.DEVICE is gpu, but torch finds no GPU on this machine. "
            f"Set config.MACHINE.DEVICE={hint} (or auto)."
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
    """What `auto` is for a run of so many processes: CUDA, Apple's GPU, or the CPU."""
    if gpu_count():
        return "gpu"
    return "mps" if has_mps() and processes == 1 else "cpu"


def gpu_count() -> int:
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def has_mps() -> bool:
    """Does torch find Apple's GPU?"""
    return torch.backends.mps.is_available()


def _apple() -> torch.device:
    if not has_mps():
        why = "" if torch.backends.mps.is_built() else " This torch is built without MPS."
        raise LaunchError(
            f"config.MACHINE.DEVICE is mps, but torch finds no GPU of Apple's on this machine."
            f"{why} Set config.MACHINE.DEVICE=cpu (or auto)."
        )
    return torch.device("mps")
