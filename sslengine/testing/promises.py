"""Declare the promises of a kind of component in a suite, and raise the error for a broken one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from sslengine.errors import ConfigError, SSLEngineError, listing
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


@dataclass(frozen=True)
class Case:
    """The arguments of `contract`, and a folder."""

    component: str
    arguments: Mapping[str, Any]
    overrides: Sequence[str]
    unchanged: Sequence[str]
    folder: Path


class Suite:
    """The base of all suites: one component and its test settings."""

    kind: ClassVar[str] = ""
    trains: ClassVar[bool] = False  # does it test components in training runs?

    def __init__(self, trial: Case) -> None:
        self.component, self.arguments = trial.component, dict(trial.arguments)
        self.name, self.folder = component_key(trial.component), trial.folder
        self.promises: Sequence[str] = ()  # the names of those to test
        if not self.trains and (trial.overrides or trial.unchanged):
            raise ConfigError(
                f"contract({self.kind!r}, {self.component!r}): a {self.kind} is tested without a "
                f"training run, so overrides= and unchanged= have no effect. Omit them."
            )
