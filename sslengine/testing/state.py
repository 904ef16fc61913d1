"""The state of an object as a flat dict, so that two can be compared by names."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sslengine.distributed.sharding import whole

# Attributes that every module has.
_OF_MODULES = frozenset(vars(nn.Module()))
_DEPTH = 6


def flat(value: Any, path: str = "") -> dict[str, Any]:
    """Return the leaves of nested dicts and lists by their key paths."""
    if isinstance(value, Mapping):
        inner: Iterable[tuple[Any, Any]] = value.items()
    elif isinstance(value, (list, tuple, deque)):
        inner = enumerate(value)
    else:
        return {path: value}
    dot = f"{path}." if path else ""
    return {k: v for key, each in inner for k, v in flat(each, f"{dot}{key}").items()}


def same(one: Any, other: Any) -> bool:
    """Tell whether two values are equal bit by bit."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        one, other = whole(one), whole(other)
        if one.shape != other.shape or one.dtype != other.dtype:
            return False
        return torch.equal(one, other) or _same_with_nan(one, other)
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return np.array_equal(one, other)
    if isinstance(one, float) and isinstance(other, float):
        return one == other or (one != one and other != other)
    return type(one) is type(other) and bool(one == other)


def _same_with_nan(one: Tensor, other: Tensor) -> bool:
    return one.is_floating_point() and torch.allclose(one, other, 0.0, 0.0, equal_nan=True)


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Return the keys under which two flat states differ."""
    return [
        key
        for key in dict.fromkeys((*one, *other))
        if key not in one or key not in other or not same(one[key], other[key])
    ]


def copied(state: Any) -> dict[str, Any]:
    """Return a flat copy that shares no tensor with the state. Collective if it is sharded."""
    return {key: _copied(each) for key, each in flat(state).items()}


def _copied(value: Any) -> Any:
    return whole(value).detach().cpu().clone() if isinstance(value, Tensor) else value


def outside_state_dict(root: nn.Module) -> dict[str, Any]:
    """Return what a module and its submodules hold outside their state dict."""
    found: dict[str, Any] = {}
    for name, module in root.named_modules():
        dot = f"{name}." if name else ""
        for key, value in vars(module).items():
            if key not in _OF_MODULES:
                found.update(_values(value, f"{dot}{key}", _DEPTH))
        for key in sorted(module._non_persistent_buffers_set):
            found.update(_values(module._buffers[key], f"{dot}{key}", _DEPTH))
    return found


def attributes(thing: object) -> dict[str, Any]:
    """Return the attributes of an object that is not a module."""
    found: dict[str, Any] = {}
    for key, value in vars(thing).items() if hasattr(thing, "__dict__") else ():
        found.update(_values(value, key, _DEPTH))
    return found


def _values(value: Any, path: str, depth: int) -> Iterator[tuple[str, Any]]:
    """Yield numbers, text, tensors and random generators, also nested ones."""
    if isinstance(value, Tensor):
        yield path, _copied(value)
    elif isinstance(value, np.ndarray):
        yield path, value.copy()
    elif value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
        yield path, value
    elif isinstance(value, torch.Generator):
        yield path, value.get_state().clone()
    elif isinstance(value, random.Random):
        yield path, value.getstate()
    elif isinstance(value, np.random.Generator):
        yield path, repr(value.bit_generator.state)
    elif depth and isinstance(value, Mapping):
        for key, each in value.items():
            yield from _values(each, f"{path}.{key}", depth - 1)
    elif isinstance(value, (set, frozenset)):
        yield path, sorted(map(repr, value))
    elif depth and isinstance(value, (list, tuple, deque)):
        yield f"{path}.length", len(value)
        for number, each in enumerate(value):
            yield from _values(each, f"{path}.{number}", depth - 1)
