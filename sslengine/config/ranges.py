"""Declare options: a default, with the range of its values, which is checked for every config.

    temperature: float = above(0, 0.1)              more than 0
    queue_length: int = at_least(0, 65536)          0 or more
    keep: int = at_least(1, -1, also=-1)            1 or more, or -1
    momentum: float = share(0.99)                   from 0 to 1
    beta: float = at_least(0, 0.9, below=1)         0 or more and below 1
    targets: str = choice("center", "sinkhorn")     one of these; the first is the default

A default may be a field, as in `at_least(0, epochs(10))`. Each entry of a list is in it.
Null is always in it, NaN and infinity never. `make schema` shows the ranges.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

from sslengine.errors import nearest

KEY = "range"


def declare(default: Any, **metadata: Any) -> Any:
    """Return a dataclass field with metadata; each object gets its own copy of a list or dict."""
    if isinstance(default, (list, dict)):
        return dataclasses.field(default_factory=default.copy, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def default_of(field: dataclasses.Field[Any]) -> Any:
    """Return the default of a field; MISSING if there is none."""
    made = field.default_factory
    return field.default if made is dataclasses.MISSING else made()


def fields(cls: Any) -> Mapping[str, dataclasses.Field[Any]]:
    """Return the fields of a dataclass by name; none of another class, or of None."""
    return _fields(cls)


@cache
def _fields(cls: Any) -> Mapping[str, dataclasses.Field[Any]]:
    found = dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ()
    return MappingProxyType({field.name: field for field in found})


@dataclasses.dataclass(frozen=True)
class ValueRange:
    low: float = -math.inf
    high: float = math.inf
    low_is_out: bool = False
    high_is_out: bool = False
    also: tuple[Any, ...] = ()  # values that are in it too; without bounds: all of them
    bounded: bool = True

    def __contains__(self, value: Any) -> bool:
        if any(value is each or value == each for each in self.also):
            return True
        if not self.bounded or not isinstance(value, (int, float)) or not math.isfinite(value):
            return False
        above = value > self.low if self.low_is_out else value >= self.low
        return above and (value < self.high if self.high_is_out else value <= self.high)

    def __str__(self) -> str:
        also = ", ".join(str(each) for each in self.also if each is not None)
        if not self.bounded:
            return f"one of {also}"
        words = f"a number above {self.low:g}" if self.low_is_out else f"{self.low:g} or more"
        if not self.low_is_out and not self.high_is_out:
            words = f"a number from {self.low} to {self.high}"
        elif self.high < math.inf:
            words += f" and {'below' if self.high_is_out else 'at most'} {self.high:g}"
        return f"{words}, or {also}" if also else words

    def schema(self) -> dict[str, Any]:
        """Return the keywords of JSON Schema for a number of this range."""
        named = {
            "exclusiveMinimum" if self.low_is_out else "minimum": self.low,
            "exclusiveMaximum" if self.high_is_out else "maximum": self.high,
        }
        return {name: value for name, value in named.items() if math.isfinite(value)}


def above(
    low: float, default: Any, below: float = math.inf, at_most: float = math.inf, also: Any = ()
) -> Any:
    """Declare a field whose value is more than `low`, and below or at most an upper bound."""
    return _declare_between(low, True, default, below, at_most, also)


def at_least(
    low: float, default: Any, below: float = math.inf, at_most: float = math.inf, also: Any = ()
) -> Any:
    """Declare a field whose value is `low` or more, and below or at most an upper bound."""
    return _declare_between(low, False, default, below, at_most, also)


def _declare_between(
    low: float, low_is_out: bool, default: Any, below: float, at_most: float, also: Any
) -> Any:
    others = also if isinstance(also, tuple) else (also,)
    return _declare(
        ValueRange(low, min(below, at_most), low_is_out, below <= at_most, others), default
    )


def share(default: Any) -> Any:
    """Declare a field whose value is from 0 to 1."""
    return at_least(0, default, at_most=1)


def choice(default: Any, *others: Any) -> Any:
    """Declare a field whose value is one of these."""
    return _declare(ValueRange(also=(*dict.fromkeys((default, *others)),), bounded=False), default)


def choices(default: list[Any], *allowed: Any) -> Any:
    """Declare a field that is a list of some of these."""
    return _declare(ValueRange(also=allowed, bounded=False), default)


def range_problems(section: Any) -> Iterator[str]:
    """Yield each value of a dataclass that is not in its declared range, with its key."""
    for key, allowed in declared_ranges(section.__class__).items():
        for place, value in leaves(getattr(section, key), key):
            if value is not None and value not in allowed:
                shown = f"{value:g}" if isinstance(value, float) else repr(value)
                words = () if allowed.bounded else allowed.also
                hint = nearest(value, [each for each in words if isinstance(each, str)])
                yield f"{place}: expected {allowed}, got {shown}. {hint}".rstrip()


def empty_lists(section: Any, *keys: str) -> Iterator[str]:
    """Yield each of the keys whose list has no entry."""
    for key in keys:
        if not getattr(section, key):
            yield f"{key}: expected one value or more."


def leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the key path and value of each entry of lists and dicts."""
    match value:
        case Mapping():
            for key, each in value.items():
                yield from leaves(each, f"{path}.{key}")
        case [*entries]:
            for index, each in enumerate(entries):
                yield from leaves(each, f"{path}.{index}")
        case _:
            yield path, value


@cache
def declared_ranges(cls: Any) -> Mapping[str, ValueRange]:
    """Return the ranges of a dataclass's fields, by key."""
    fields = (each for each in dataclasses.fields(cls) if KEY in each.metadata)
    return {each.name: each.metadata[KEY] for each in fields}


def _declare(allowed: ValueRange, default: Any) -> Any:
    if isinstance(default, dataclasses.Field):
        metadata = {**default.metadata, KEY: allowed}
        return dataclasses.field(default=default.default, metadata=metadata)
    return declare(default, **{KEY: allowed})
