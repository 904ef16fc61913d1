"""Numbers that options take: none is less than it can be. A call in Python is held to the same."""

from __future__ import annotations

import argparse

from sslengine.errors import ConfigError


def expect_counts(given: argparse.Namespace, **least: int) -> None:
    """least: by the names of the options. One that is not given is None."""
    for name, smallest in least.items():
        found = getattr(given, name)
        if found is not None and found < smallest:
            option = f"--{name.replace('_', '-')}"
            raise ConfigError(f"{option}: expected {smallest} or more, got {found}.")
