"""Compress gradients before DDP reduces them, with torch's communication hooks.

fp16, bf16    each gradient is rounded to that format and summed in it
powersgd      low-rank factors of each matrix; their error is added to the next gradient
              (Vogels, Karimireddy, Jaggi, 2019)
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._C._distributed_c10d import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

_ROUNDED = {"fp16": default_hooks.fp16_compress_hook, "bf16": default_hooks.bf16_compress_hook}
_TENSORS = ("error_dict", "p_memory_dict", "q_memory_dict")


def _one_at_a_time(state: Any, bucket: GradBucket) -> torch.futures.Future[Tensor]:
    """Torch's hook starts a second collective from another thread when the first one is done. If
    the next bucket's collectives ran at the same time, ranks could mix them up: wait here.
    """
    future = powerSGD_hook.powerSGD_hook(state, bucket)
    future.wait()
    return future


# DDP compares the annotations with types, so they must not be strings.
_one_at_a_time.__annotations__ = {
    "bucket": GradBucket, "return": torch.futures.Future[Tensor]
}  # fmt: skip


class Compression:
    """kind: fp16, bf16 or powersgd. rank: of PowerSGD's factors. start: steps without PowerSGD."""

    def __init__(self, kind: str, rank: int = 1, start: int = 1000) -> None:
        self.kind = kind
        self._power = (
            powerSGD_hook.PowerSGDState(None, rank, start_powerSGD_iter=start)
            if kind == "powersgd"
            else None
        )

    @property
    def needs_fixed_buckets(self) -> bool:
        """Return whether DDP must not rebuild its buckets.

        PowerSGD keeps its state per bucket. DDP rebuilds the buckets after its first step, also
        after the first step of a resumed run, unless it looks for unused parameters, which costs
        a traversal of the graph in each step.
        """
        if self._power is not None:
            warnings.filterwarnings("ignore", message="find_unused_parameters=True was specified")
        return self._power is not None

    def register(self, model: DistributedDataParallel) -> None:
        if self._power is None:
            model.register_comm_hook(None, _ROUNDED[self.kind])
        else:
            model.register_comm_hook(self._power, _one_at_a_time)

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's state: the errors differ between ranks."""
        if self._power is None:
            return {}
        stream: Any = self._power.rng.get_state()
        return {
            **{name: dict(getattr(self._power, name)) for name in _TENSORS},
            "iter": self._power.iter,
            "rng": {"key": torch.from_numpy(stream[1].astype(np.int64)), "position": stream[2]},
        }

    def load_state_dict(self, state: dict[str, Any], device: torch.device) -> None:
        if self._power is None or not state:
            return
        for name in _TENSORS:
            setattr(self._power, name, {n: each.to(device) for n, each in state[name].items()})
        self._power.iter = state["iter"]
        key = state["rng"]["key"].numpy().astype(np.uint32)
        self._power.rng.set_state(("MT19937", key, state["rng"]["position"], 0, 0.0))
