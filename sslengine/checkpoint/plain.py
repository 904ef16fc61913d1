"""A checkpoint is read without running code, so it holds tensors and plain values alone.

What else a hook or a method keeps in its state could be written, and never be read again.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from sslengine.errors import CheckpointError, listing

_PLAIN = frozenset((type(None), bool, int, float, str, bytes))


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
    """Values that are not plain."""
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
