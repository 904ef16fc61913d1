"""Which Python code a config names. What you type may bring code; a config that lies in a folder
may be anybody's, so whoever runs one from there asks first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

_DOTTED = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")  # module:Name


def code_named_in(tree: Any, key: str = "config") -> Iterator[str]:
    """`KEY: what`, for each plugin and each dotted path of a config."""
    if isinstance(tree, dict):
        for name, value in tree.items():
            if key == "config" and name == "PLUGINS":
                yield from (f"config.PLUGINS: {each}" for each in value or [])
            else:
                yield from code_named_in(value, f"{key}.{name}")
                yield from code_named_in(name, key)
    elif isinstance(tree, list):
        for index, value in enumerate(tree):
            yield from code_named_in(value, f"{key}.{index}")
    elif isinstance(tree, str) and _DOTTED.fullmatch(tree):
        yield f"{key}: {tree}"
