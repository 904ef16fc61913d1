"""`auto` in MODEL.HEAD.PARAMS: a width that is that of the feature.

First in an argument that is a list, or as an argument that begins with `in_`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

AUTO = "auto"


def auto_places(params: Any) -> Iterator[tuple[Any, str | int]]:
    """Where HEAD.PARAMS say it: the container, and the key or place in it."""
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


def with_some_width(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a head as they will be, as far as their types go."""
    some = {key: [*each] if isinstance(each, list) else each for key, each in arguments.items()}
    for place, key in auto_places([["head", some]]):
        place[key] = 1
    return some
