"""Names that a test registers are gone after it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sslengine.registry import Registry


@contextmanager
def as_before(registry: Registry[Any]) -> Iterator[None]:
    """Those that were declared before stay: their modules are imported once in a process."""
    before = {*registry.names()}
    try:
        yield
    finally:
        for name in {*registry.names()} - before:
            for table in (registry._things, registry._owners, registry._options):
                table.pop(name, None)
