"""Test one component for each promise of its kind."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from sslengine.errors import ConfigError, SSLEngineError, UnknownNameError, listing, nearest
from sslengine.testing import component_suites, data_suites
from sslengine.testing.promises import BrokenPromise, Case, Suite, promises

SUITES: dict[str, type[Any]] = {
    suite.kind: suite
    for module in (component_suites, data_suites)
    for suite in vars(module).values()
    if isinstance(suite, type) and issubclass(suite, Suite) and suite.kind
}


class Contract:
    """One component with its suite. Runs are made on first use and shared by promises."""

    def __init__(
        self,
        kind: str,
        component: Any,
        arguments: Mapping[str, Any] | None = None,
        overrides: Sequence[str] = (),
        *,
        also: Sequence[str] = (),
        without: Mapping[str, str] | None = None,
        unchanged: Sequence[str] = (),
        **more: Any,
    ) -> None:
        if kind not in SUITES:
            raise UnknownNameError(
                f"there is no contract for {kind!r}. {nearest(kind, SUITES)} Known: "
                f"{listing(SUITES)}"
            )
        self.kind, self.component = kind, _named(component)
        known = promises(SUITES[kind])
        unknown = {*also, *(without or {})} - known.keys()
        if unknown:
            raise UnknownNameError(
                f"a {kind} has no promise {listing(unknown)}. Known: {listing(known)}"
            )
        chosen = [name for name, always in known.items() if always or name in also]
        self.promises = [name for name in chosen if name not in (without or {})]
        self._given = (arguments or {}, overrides, unchanged, more)

    @cached_property
    def suite(self) -> Any:
        arguments, overrides, unchanged, more = self._given
        folder = Path(tempfile.mkdtemp(prefix="sslengine-contract-"))
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        trial = Case(self.component, arguments, overrides, unchanged, folder)
        made = SUITES[self.kind](trial, **more)
        made.promises = self.promises
        return made

    def keep(self, promise: str) -> None:
        """Raise BrokenPromise if the component does not keep this promise."""
        try:
            getattr(self.suite, promise)()
        except BrokenPromise:
            raise
        except Exception as error:
            kind = "" if isinstance(error, SSLEngineError) else f"{type(error).__name__}: "
            raise BrokenPromise(
                f"{self.component}: {promise.replace('_', ' ')}: {kind}{error}"
            ) from error


def check(kind: str, component: Any, *arguments: Any, **more: Any) -> None:
    """Raise BrokenPromise with all promises that the component breaks. See `contract`."""
    tried, broken = Contract(kind, component, *arguments, **more), []
    for name in tried.promises:
        try:
            tried.keep(name)
        except BrokenPromise as error:
            broken.append(str(error))
    if broken:
        raise BrokenPromise("\n".join(broken))


def contract(kind: str, component: Any, *arguments: Any, **more: Any) -> Callable[[str], None]:
    """Return a test for pytest with one case for each promise of the kind:

        test_mine = sslengine.testing.contract("method", "my_file:MyLoss", {"temperature": 0.2})

    component: a name, a dotted path or the class itself.
    arguments: the component's arguments, as in YAML.
    overrides: arguments of the command line; `config=FILE` replaces the small run in which
        components are tested by default.
    also: names of promises to test that only some components of the kind make.
    without: promises not to test, each with the reason.
    unchanged: patterns of trainable parameters that need not change in so few steps.
    """
    import pytest

    tried = Contract(kind, component, *arguments, **more)

    @pytest.mark.parametrize("promise", tried.promises)
    def test(promise: str) -> None:
        tried.keep(promise)

    return test


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
