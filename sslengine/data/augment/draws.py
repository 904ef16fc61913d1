"""What a transform draws for an image of a given size, and which operations that comes to.

A draw makes the same calls on the same random streams, in the same order, as the transform
does when it is called; so the plan and the plain list give the same views under one seed.

The draw of a transform of torchvision is in the file of its operation. It is registered here by
exact type: what a subclass changed is not known.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from sslengine.data.augment.operation import Operation, Size
from sslengine.data.augment.stream import uniform

Draw = Callable[[Size], list[Operation]]  # partials of functions: a plan is pickled
DrawOf = Callable[[Any], Draw | None]

F = TypeVar("F", bound=DrawOf)

DRAWS: dict[type, DrawOf] = {}


def draw_for(kind: type) -> Callable[[F], F]:
    """Registers a function that gives the draw of a transform, None where it is not known."""

    def register(function: F) -> F:
        DRAWS[kind] = function
        return function

    return register


def always(operation: Operation, size: Size) -> list[Operation]:
    return [operation]


def by_chance(p: float, operation: Operation, size: Size) -> list[Operation]:
    """Of a transform that compares numbers; of one that compares tensors, p is `as_compared`."""
    return [operation] if uniform() < p else []
