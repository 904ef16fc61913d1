"""Check that a state can be saved, and copy it to host memory.

A checkpoint is read without running code, so it holds tensors and plain values alone: what else a
hook or a method keeps could be written, and never be read again. Training cannot change the copy
while it is written.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from sslengine.distributed.shard_files import Share
from sslengine.distributed.sharding import is_sharded, local
from sslengine.errors import CheckpointError, listing

_PLAIN = frozenset((type(None), bool, int, float, str, bytes))


def copy_to_host(state: Any) -> Any:
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
            rows = _copy_tensor(local(value.detach()))
            seen[id(value)] = Share(rows, value.shape, value.stride())
        return seen[id(value)]
    if isinstance(value, Tensor):
        place = value.data_ptr(), value.dtype, value.shape, value.stride()
        if place not in seen:  # shared weights stay shared
            seen[place] = _copy_tensor(value.detach())
        return seen[place]
    if isinstance(value, Mapping):
        return {key: _copied(each, seen) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        copies = [_copied(each, seen) for each in value]
        return tuple(copies) if isinstance(value, tuple) else copies
    return set(value) if isinstance(value, set) else value


def _copy_tensor(tensor: Tensor) -> Tensor:
    if tensor.device.type != "cuda":
        return tensor.clone()
    # Into pinned memory, so that the copy is asynchronous.
    return torch.empty_like(tensor, device="cpu", pin_memory=True).copy_(tensor, non_blocking=True)


def size_of(state: Any) -> int:
    """Sum the bytes of all tensors: a file of them is a few KB larger."""
    if isinstance(state, Share):
        return state.rows.nbytes
    if isinstance(state, Tensor):
        return state.nbytes
    if isinstance(state, Mapping):
        return sum(size_of(each) for each in state.values())
    if isinstance(state, (list, tuple)):
        return sum(size_of(each) for each in state)
    return 0


def expect_plain(state: Mapping[str, Any]) -> None:
    """Raise CheckpointError, with the place, if a value of the state could not be read again."""
    found = [f"{place}: {kind.__module__}.{kind.__qualname__}" for place, kind in _others(state)]
    if found:
        raise CheckpointError(
            f"the state cannot be saved: a checkpoint holds tensors and plain values, and could "
            f"not be read with {listing(found, 5)}. Let `state_dict` (`rank_state`) return "
            f"numbers, text, lists, dicts or tensors: float(x), list(x), torch.from_numpy(x)."
        )


def _others(value: Any, place: str = "") -> Iterator[tuple[str, type]]:
    """Yield (place, type) of values that are not plain."""
    if type(value) in _PLAIN or isinstance(value, Tensor):
        return
    if isinstance(value, Mapping):
        for key, each in value.items():
            inner = f"{place}.{key}" if place else str(key)
            yield from _others(key, inner)
            yield from _others(each, inner)
    elif isinstance(value, (list, tuple)):
        for index, each in enumerate(value):
            yield from _others(each, f"{place}.{index}")
    elif not _can_be_read(value):
        yield place, type(value)


def _can_be_read(value: Any) -> bool:
    file = io.BytesIO()
    try:
        torch.save(value, file)
        file.seek(0)
        torch.load(file, weights_only=True)
    except Exception:
        return False
    return True
