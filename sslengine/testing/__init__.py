"""Contract tests: check the promises of a component's kind in real runs.

    import sslengine.testing

    test_mine = sslengine.testing.contract("method", "my_package.my_file:MyLoss")

See docs/testing.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sslengine.errors import UnknownNameError, listing, nearest
from sslengine.testing import component_suites, data_suites
from sslengine.testing.promises import BrokenPromise, Suite

__all__ = ["BrokenPromise", "check", "contract"]

SUITES: dict[str, type[Any]] = {
    suite.kind: suite
    for module in (component_suites, data_suites)
    for suite in vars(module).values()
    if isinstance(suite, type) and issubclass(suite, Suite) and suite.kind
}


def suite_of(kind: str, component: Any, *arguments: Any, **more: Any) -> Any:
    """Return the suite of the kind for one component. See `contract` for the arguments."""
    if kind not in SUITES:
        raise UnknownNameError(
            f"there is no contract for {kind!r}. {nearest(kind, SUITES)} Known: {listing(SUITES)}"
        )
    return SUITES[kind](component, *arguments, **more)


def check(kind: str, component: Any, *arguments: Any, **more: Any) -> None:
    """Raise BrokenPromise with all promises that the component breaks. See `contract`."""
    suite, broken = suite_of(kind, component, *arguments, **more), []
    for name in suite.promises:
        try:
            suite.keep(name)
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

    suite = suite_of(kind, component, *arguments, **more)

    @pytest.mark.parametrize("promise", suite.promises)
    def test(promise: str) -> None:
        suite.keep(promise)

    return test
