"""Promises of a component, and the error for a broken one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from sslengine.errors import SSLEngineError

F = TypeVar("F", bound=Callable[..., None])


class BrokenPromise(SSLEngineError, AssertionError):
    """A component does not keep a promise of its kind."""


def promise(always: bool = True, ranks: bool = False) -> Callable[[F], F]:
    """Mark a method of a suite as the test of a promise; its docstring describes the promise.

    always: every component of the kind makes the promise. Others are chosen by name (`also`).
    ranks: the test needs several processes.
    """

    def mark(function: F) -> F:
        function.promise = {"always": always, "ranks": ranks}  # type: ignore[attr-defined]
        return function

    return mark


def promises(suite: type[Any]) -> Iterator[tuple[str, dict[str, bool]]]:
    """The names of all promises of a suite, in the order of their definition."""
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
    """The first of them, separated by commas, and how many more there are."""
    listed = [str(each) for each in found]
    more = f" and {len(listed) - limit} more" if len(listed) > limit else ""
    return ", ".join(listed[:limit]) + more
