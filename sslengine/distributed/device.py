"""The device that this process computes on."""

from __future__ import annotations

import torch

from sslengine.distributed.ranks import local_rank
from sslengine.errors import LaunchError


def pick_device(name: str) -> torch.device:
    """name: the value of config.MACHINE.DEVICE."""
    if name == "auto":
        name = "gpu" if torch.cuda.is_available() else "cpu"
    if name == "cpu":
        return torch.device("cpu")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if count == 0:
        raise LaunchError(
            "config.MACHINE.DEVICE is gpu, but torch finds no GPU on this machine. "
            "Set config.MACHINE.DEVICE=cpu (or auto)."
        )
    if local_rank() >= count:
        raise LaunchError(
            f"this is rank {local_rank()} of its node, which has {count} GPUs. "
            f"Set config.DISTRIBUTED.NUM_PROC_PER_NODE={count} or fewer."
        )
    device = torch.device("cuda", local_rank())
    torch.cuda.set_device(device)
    return device
