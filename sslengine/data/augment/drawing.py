"""The draw of a transform, whoever wrote it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from torchvision.transforms import Compose, RandomApply

from sslengine.data.augment import operations  # noqa: F401 - they register the draws that they have
from sslengine.data.augment.draws import DRAWS, Draw, draw_for
from sslengine.data.augment.operation import Operation, Size
from sslengine.data.augment.stream import as_compared, uniform
from sslengine.data.augment.transform import Transform, Wraps, kind_of
from sslengine.data.augment.transforms import crops, jitter  # noqa: F401


def draw_of(transform: Any) -> Any:
    """None if it has none. Its form depends on the kind: see `Transform`."""
    kind = type(transform)
    if kind in DRAWS:
        return DRAWS[kind](transform)
    if kind_of(transform).__call__ is Wraps.__call__:
        return draw_of(transform.change)
    inner = _inner(transform)
    return transform.draw if _says_what_it_does(kind) and _draws(inner) is not None else None


def why_no_draw(transform: Any) -> str:
    """In words, of a transform whose `draw_of` is None."""
    kind = type(transform)
    unknown = [part for part in _inner(transform) if draw_of(part) is None]
    if unknown:
        return f"it applies {type(unknown[0]).__name__}: {why_no_draw(unknown[0])}"
    if kind in DRAWS:
        return "with these arguments the plan does not know it"
    has_draw = callable(getattr(kind, "draw", None)) and kind.draw is not Transform.draw
    if has_draw or issubclass(kind, tuple(DRAWS)):
        return "its class changes one that the plan knows, and has no own draw"
    return "it has no draw"


def _inner(transform: Any) -> Sequence[Any]:
    """Transforms that this one hands images on to."""
    if isinstance(transform, (Compose, RandomApply)):
        return list(transform.transforms)
    return transform.inner() if isinstance(transform, Transform) else ()


def _says_what_it_does(kind: type) -> bool:
    """Is `draw` at least as derived as `__call__` and `forward`?"""
    if not callable(getattr(kind, "draw", None)):
        return False
    defines = next(
        base for base in kind.__mro__ if {"draw", "__call__", "forward"} & vars(base).keys()
    )
    return "draw" in vars(defines) and defines is not Transform


def _draws(inner: Sequence[Any]) -> list[Draw] | None:
    """The draws of transforms within a transform, if all have one and make one image of one."""
    if any(kind_of(each).lazily is not Transform.lazily for each in inner):
        return None
    draws = [draw_of(each) for each in inner]
    return None if None in draws else draws


def _in_turn(draws: Sequence[Draw]) -> Draw:
    return draws[0] if len(draws) == 1 else partial(draw_in_turn, draws)


def draw_in_turn(draws: Sequence[Draw], size: Size) -> list[Operation]:
    """One transform after another, each on what the one before it makes."""
    made: list[Operation] = []
    for draw in draws:
        for operation in draw(size):
            made.append(operation)
            size = operation.size(size)
    return made


@draw_for(Compose)
def _compose(transform: Any) -> Draw | None:
    draws = _draws(_inner(transform))
    return None if draws is None else _in_turn(draws)


@draw_for(RandomApply)
def _random_apply(transform: Any) -> Draw | None:
    draws = _draws(_inner(transform))
    if draws is None:
        return None
    return partial(_draw_random_apply, as_compared(transform.p), _in_turn(draws))


def _draw_random_apply(p: float, draw: Draw, size: Size) -> list[Operation]:
    return [] if p < uniform() else draw(size)
