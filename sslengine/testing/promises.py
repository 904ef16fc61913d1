"""What a promise of a component is, and how a broken one is told."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from sslengine.errors import SSLEngineError

F = TypeVar("F", bound=Callable[..., None])


class BrokenPromise(SSLEngineError, AssertionError):
    """A component does not do what all of its kind do."""


def promise(always: bool = True, ranks: bool = False) -> Callable[[F], F]:
    """Above a method of a suite, whose docstring says what a component of the kind promises.

    always: it holds for every component of the kind; others are asked for by name (`also`).
    ranks: it is tried on several processes.
    """

    def mark(function: F) -> F:
        function.promise = {"always": always, "ranks": ranks}  # type: ignore[attr-defined]
        return function

    return mark


def promises(suite: type[Any]) -> Iterator[tuple[str, dict[str, bool]]]:
    """The names of all promises of a suite, in the order in which they are written."""
    seen: dict[str, dict[str, bool]] = {}
    for cls in reversed(suite.__mro__):
        for name, member in vars(cls).items():
            if hasattr(member, "promise"):
                seen[name] = member.promise
    yield from seen.items()


def expect(kept: bool, what: str) -> None:
    if not kept:
        raise BrokenPromise(what)


def names(found: Iterable[object], limit: int = 6) -> str:
    """Some of them, in a sentence."""
    listed = [str(each) for each in found]
    more = f" and {len(listed) - limit} more" if len(listed) > limit else ""
    return ", ".join(listed[:limit]) + more
