"""Find `auto` in MODEL.HEAD.PARAMS: the width of the feature, or the number of classes.

The width: as the first entry of a list, or an argument whose name starts with `in_`.
The number of TRAIN's classes: as the last entry of `dims`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

AUTO = "auto"


def auto_places(params: Any) -> Iterator[tuple[Any, str | int]]:
    """Yield the list or dict that contains each `auto`, and its index or key."""
    for entry in params:
        match entry:
            case [str(), Mapping() as arguments, *_]:
                for key, value in arguments.items():
                    if isinstance(value, list) and value[:1] == [AUTO]:
                        yield value, 0
                    elif value == AUTO and str(key).startswith("in_"):
                        yield arguments, str(key)
            case [*inner]:
                yield from auto_places(inner)


def class_places(params: Any) -> Iterator[list[Any]]:
    """Yield each `dims` whose last entry is `auto`."""
    for entry in params:
        match entry:
            case [str(), {"dims": [_, *_, "auto"] as dims}, *_]:
                yield dims
            case [str(), *_]:
                pass
            case [*inner]:
                yield from class_places(inner)


def with_some_width(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments with 1 for `auto`, so that their types can be checked."""
    some = {key: [*each] if isinstance(each, list) else each for key, each in arguments.items()}
    for place, key in auto_places([["head", some]]):
        place[key] = 1
    for dims in class_places([["head", some]]):
        dims[-1] = 1
    return some
