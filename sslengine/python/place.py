"""The device, precision and process group of a call from Python."""

from __future__ import annotations

import atexit
import os
from typing import Any

import torch

from sslengine.distributed import process_group
from sslengine.distributed.device import pick_device
from sslengine.distributed.ranks import initialized
from sslengine.errors import ConfigError, nearest
from sslengine.precision import Precision, build_precision

_PRECISIONS: dict[str, dict[str, Any]] = {
    "fp32": {"USE_AMP": False},
    "fp16": {"USE_AMP": True, "AMP_TYPE": "pytorch", "AMP_DTYPE": "float16"},
    "bf16": {"USE_AMP": True, "AMP_TYPE": "pytorch", "AMP_DTYPE": "bfloat16"},
}


def choose_device(device: str | torch.device | None) -> torch.device:
    """None: this rank's GPU if there is one, else the CPU."""
    if device is None or str(device) in ("auto", "gpu", "cuda"):
        return pick_device("auto" if device is None else str(device).replace("cuda", "gpu"))
    return torch.device(device)


def join_others(device: torch.device) -> None:
    """Join the ranks that torchrun has started, if any, until Python ends."""
    if initialized() or not {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= os.environ.keys():
        return
    process_group.join("nccl", device, timeout_minutes=30.0)
    atexit.register(process_group.leave)


def amp_params(precision: str) -> dict[str, Any]:
    """The values of MODEL.AMP_PARAMS for this precision."""
    if precision not in _PRECISIONS:
        raise ConfigError(
            f"precision: expected {', '.join(_PRECISIONS)}; got {precision!r}. "
            f"{nearest(precision, _PRECISIONS)}".rstrip()
        )
    return dict(_PRECISIONS[precision])


def make_precision(precision: str, device: torch.device) -> Precision:
    amp = amp_params(precision)
    return build_precision(
        device, amp["USE_AMP"], amp.get("AMP_TYPE", ""), amp.get("AMP_DTYPE", ""), {}
    )
