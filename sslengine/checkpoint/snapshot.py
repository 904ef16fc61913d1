"""Copy a state to host memory, so that training cannot change it while it is written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from sslengine.distributed.shard_files import Share
from sslengine.distributed.sharding import is_sharded, local


def to_host(state: Any) -> Any:
    """Copy tensors (of a sharded tensor this rank's shard) and containers, nothing else.

    Cost: the copy; from a GPU one synchronisation, after all copies have started.
    """
    copy = _copied(state, {})
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return copy


def _copied(value: Any, seen: dict[Any, Any]) -> Any:
    if is_sharded(value):
        if id(value) not in seen:
            rows = _on_host(local(value.detach()))
            seen[id(value)] = Share(rows, value.shape, value.stride())
        return seen[id(value)]
    if isinstance(value, Tensor):
        place = value.data_ptr(), value.dtype, value.shape, value.stride()
        if place not in seen:  # shared weights stay shared
            seen[place] = _on_host(value.detach())
        return seen[place]
    if isinstance(value, Mapping):
        return {key: _copied(each, seen) for key, each in value.items()}
    if isinstance(value, tuple):
        return tuple(_copied(each, seen) for each in value)
    if isinstance(value, list):
        return [_copied(each, seen) for each in value]
    if isinstance(value, set):
        return set(value)
    return value


def _on_host(tensor: Tensor) -> Tensor:
    if tensor.device.type != "cuda":
        return tensor.clone()
    # Into pinned memory, so that the copy is asynchronous.
    return torch.empty_like(tensor, device="cpu", pin_memory=True).copy_(tensor, non_blocking=True)


def size_of(state: Any) -> int:
    """The bytes of all tensors: a file of them is a few KB larger."""
    if isinstance(state, Share):
        return state.rows.nbytes
    if isinstance(state, Tensor):
        return state.nbytes
    if isinstance(state, Mapping):
        return sum(size_of(each) for each in state.values())
    if isinstance(state, (list, tuple)):
        return sum(size_of(each) for each in state)
    return 0
