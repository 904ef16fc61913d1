"""The device, precision and process group of a call from Python."""

from __future__ import annotations

import atexit
import os

import torch

from sslengine.distributed import process_group
from sslengine.distributed.ranks import initialized, pick_device
from sslengine.errors import ConfigError, nearest
from sslengine.precision import Precision, build_precision

DEVICES = ("auto", "gpu", "cuda", "mps", "cpu")
PRECISIONS = ("auto", "fp32", "bf16", "fp16")


def choose_device(device: str | torch.device | None) -> torch.device:
    """None: this rank's GPU if there is one, else the CPU."""
    if device is None or str(device) in ("auto", "gpu", "cuda"):
        return pick_device("auto" if device is None else str(device).replace("cuda", "gpu"))
    try:
        return torch.device(device)
    except RuntimeError as error:
        kind = str(device).partition(":")[0]
        raise ConfigError(
            f"device: expected {', '.join(DEVICES)} or a device of torch such as cuda:1; got "
            f"{device!r}. {nearest(kind, DEVICES)}".rstrip()
        ) from error


def join_others(device: torch.device) -> None:
    """Join the ranks that torchrun has started, if any, until Python ends."""
    if initialized() or not {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= os.environ.keys():
        return
    process_group.join("nccl", device, timeout_minutes=30.0)
    atexit.register(process_group.leave)


def known_precision(precision: str) -> str:
    """The value of MACHINE.PRECISION. TF32 is a switch of the whole process, and yours to set."""
    if precision not in PRECISIONS:
        raise ConfigError(
            f"precision: expected {', '.join(PRECISIONS)}; got {precision!r}. "
            f"{nearest(precision, PRECISIONS)}".rstrip()
        )
    return precision


def make_precision(precision: str, device: torch.device) -> Precision:
    return build_precision(known_precision(precision), device, where="precision")
