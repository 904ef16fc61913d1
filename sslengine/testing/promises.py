"""The base of a kind's suite: it declares the promises of the kind, and tests one component."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from sslengine.errors import ConfigError, SSLEngineError, UnknownNameError, listing
from sslengine.registry import component_key

F = TypeVar("F", bound=Callable[..., None])
names = partial(listing, limit=6)


class BrokenPromise(SSLEngineError, AssertionError):
    """A component does not keep a promise of its kind."""

    names: Sequence[str] = ()  # of the parameters or attributes that do not


def promise(always: bool = True) -> Callable[[F], F]:
    """Mark a method of a suite as the test of a promise; its docstring describes the promise.

    always: every component of the kind makes the promise. Others are chosen by name (`also`).
    """

    def mark(function: F) -> F:
        function.always = always  # type: ignore[attr-defined]
        return function

    return mark


def promises(suite: type[Any]) -> dict[str, bool]:
    """Return the names of all promises of a suite, in the order of their definition, and of each
    whether every component makes it."""
    members = (each for cls in reversed(suite.__mro__) for each in vars(cls).items())
    return {name: each.always for name, each in members if hasattr(each, "always")}


def expect(kept: bool, what: str, culprits: Sequence[str] = ()) -> None:
    if not kept:
        broken = BrokenPromise(what)
        broken.names = culprits
        raise broken


class Suite:
    """One component and its test settings. Runs are made on first use and shared by promises."""

    kind: ClassVar[str] = ""
    trains: ClassVar[bool] = False  # does it test components in training runs?
    own: ClassVar[tuple[str, ...]] = ()  # further arguments of the kind: its attributes

    def __init__(
        self,
        component: Any,
        arguments: Mapping[str, Any] | None = None,
        overrides: Sequence[str] = (),
        *,
        also: Sequence[str] = (),
        without: Mapping[str, str] | None = None,
        unchanged: Sequence[str] = (),
        **own: Any,
    ) -> None:
        """The arguments of `contract`."""
        if unknown := {*own} - {*self.own}:
            raise TypeError(f"a contract of a {self.kind} has no {listing(unknown)}")
        vars(self).update(own)
        self.component, self.arguments = _named(component), dict(arguments or {})
        self.name = component_key(self.component)
        self.overrides, self.unchanged = tuple(overrides), tuple(unchanged)
        if not self.trains and (overrides or unchanged):
            raise ConfigError(
                f"contract({self.kind!r}, {self.component!r}): a {self.kind} is tested without a "
                f"training run, so overrides= and unchanged= have no effect. Omit them."
            )
        known, left_out = promises(type(self)), without or {}
        if unknown := {*also, *left_out} - known.keys():
            raise UnknownNameError(
                f"a {self.kind} has no promise {listing(unknown)}. Known: {listing(known)}"
            )
        chosen = (name for name, always in known.items() if always or name in also)
        self.promises = [name for name in chosen if name not in left_out]

    @cached_property
    def folder(self) -> Path:
        folder = Path(tempfile.mkdtemp(prefix="sslengine-contract-"))
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        return folder

    def keep(self, promise: str) -> None:
        """Raise BrokenPromise if the component does not keep this promise."""
        try:
            getattr(self, promise)()
        except BrokenPromise as broken:
            if not str(broken).startswith(self.name):
                broken.args = (f"{self.name}: {broken}",)
            raise
        except Exception as error:
            kind = "" if isinstance(error, SSLEngineError) else f"{type(error).__name__}: "
            raise BrokenPromise(
                f"{self.component}: {promise.replace('_', ' ')}: {kind}{error}"
            ) from error


def _named(component: Any) -> str:
    if isinstance(component, str):
        return component
    name = getattr(component, "__qualname__", "<")
    if "<" in name or "." in name:
        raise ConfigError(
            f"{component!r}: expected a name, a dotted path, or a class or function at the top "
            f"level of a module, which YAML can name."
        )
    return f"{component.__module__}:{name}"
