"""From a table of components to tests: one for each promise of each component."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import pytest

from sslengine import catalog  # noqa: F401 - declares what ships with sslengine
from sslengine.registry import Registry
from sslengine.testing import suite_of


class Of(NamedTuple):
    """What the contract of one component is given beside its name."""

    arguments: Mapping[str, Any] = {}
    overrides: tuple[str, ...] = ()
    more: Mapping[str, Any] = {}
    component: str = ""  # if it is not what the entry is called


def cases(kind: str, table: Mapping[str, Of], slow: Collection[str] = ()) -> list[Any]:
    """slow: promises of the long tail, of all or (NAME-PROMISE) of one."""
    return [
        pytest.param(tried, promise, id=f"{name}-{promise}",
                     marks=[pytest.mark.slow] if {promise, f"{name}-{promise}"} & {*slow} else [])
        for name, of in table.items()
        for tried in [suite_of(kind, of.component or name, of.arguments, of.overrides, **of.more)]
        for promise in tried.promises
    ]  # fmt: skip


def forgotten(registry: Registry[Any], *tables: Collection[str]) -> list[str]:
    """Registered components without an entry; an alias is the component that it names."""
    known = {name for table in tables for name in table}
    made = {id(registry.get(name)) for name in known if name in registry}
    own = (
        name for name in registry.names() if registry.get(name).__module__.startswith("sslengine.")
    )
    return [name for name in own if name not in known and id(registry.get(name)) not in made]
