"""Dotted names of values in nested mappings: `test.accuracy_list_meter.top_1.0`."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from sslengine.errors import listing, nearest


def leaves(
    tree: Mapping[Any, Any], separator: str = ".", prefix: str = ""
) -> Iterator[tuple[str, Any]]:
    """Yield (joined name, value) for each value that is not a mapping."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from leaves(value, separator, f"{prefix}{key}{separator}")
        else:
            yield f"{prefix}{key}", value


def nest(flat: Mapping[str, Any], over: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the tree of values by their dotted names, with the values of `over` on top."""
    tree: dict[str, Any] = {}
    for given in (flat, over or {}):
        for name, value in given.items():
            for each in reversed(name.split(".")):
                value = {each: value}
            tree = merge_trees(tree, value)
    return tree


def merge_trees(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return the first tree with the values of the other on top."""
    merged = dict(base)
    for key, value in over.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = merge_trees(merged[key], value) if both else copy.deepcopy(value)
    return merged


def below(tree: Any, keys: Iterable[str], default: Any = None) -> Any:
    """Return the value or section under these keys; `default` if a key is missing."""
    for key in keys:
        if not isinstance(tree, Mapping) or key not in tree:
            return default
        tree = tree[key]
    return tree


def full_metric_name(name: str) -> str:
    """Return `train.online.knn_20` for `online.knn20`, and any other name unchanged."""
    name = f"train.{name}" if name.startswith("online.") else name
    return re.sub(r"^(train\.online\.knn)(\d+)$", r"\1_\2", name)


def no_such_metric(name: str, known: Iterable[str]) -> str:
    known = list(known)
    return f"there is no metric {name!r}. {nearest(name, known)} Known: {listing(known)}."
