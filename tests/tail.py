"""Tables of cases of which `make test` runs a few, and `make test-slow` all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def slow_but(quick: Iterable[Any], names: Iterable[Any]) -> list[Any]:
    """All, as parameters of a test (a tuple: one of each); what is not quick is marked as slow."""
    quick, names = list(quick), list(names)
    unknown = [name for name in quick if name not in names]
    assert not unknown, f"there is no case {unknown}"
    return [
        pytest.param(
            *(name if isinstance(name, tuple) else (name,)),
            marks=() if name in quick else pytest.mark.slow,
        )
        for name in names
    ]
