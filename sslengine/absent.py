"""What VISSL's YAML may say and sslengine does not have: names of components, and keys.

The table is absent.json. Errors and warnings about these names and keys, the tables of
docs/vissl_differences.md and `list --vissl` are made from it.

NAMES are by the kind of component as errors call it (registry.py). DEAD_KEYS are not in the schema,
because nothing reads them. Setting one gives a warning that says what to do instead, or an error if
the run would differ from what the key requests. A value that requests the behaviour that sslengine
always has is accepted silently.

`*` in a name matches any part of it; in a key's path one name: a split of DATA, or a loss.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class DeadKey:
    # Why it has no effect, or what to set instead.
    instead: str
    # Values that request the behaviour that sslengine always has.
    accepted: Sequence[Any] = ()
    # Other values are an error, not a warning.
    refused: bool = False
    # It is in a dict of arguments, not in a section of the schema.
    argument: bool = False

    def accepts(self, value: Any) -> bool:
        return any(type(value) is type(each) and value == each for each in self.accepted)


_TABLE: dict[str, Any] = json.loads(Path(__file__).with_suffix(".json").read_text())
NAMES: dict[str, dict[str, str]] = _TABLE["names"]
# Names of options here, by the paths of VISSL's.
RENAMED: dict[str, str] = _TABLE["renamed"]
DEAD_KEYS = {path: DeadKey(**entry) for path, entry in _TABLE["keys"].items()}
# Keys that VISSL knows for every data source, although one alone reads them: a warning elsewhere.
_FOR_ANY_SOURCE = (
    "DATA.*.REMOVE_IMG_PATH_PREFIX", "DATA.*.NEW_IMG_PATH_PREFIX",
    "DATA.*.RANDOM_SYNTHETIC_IMAGES", "DATA.*.RANDOM_SYNTHETIC_LABELS",
)  # fmt: skip


def instead_of(kind: str, name: str) -> str:
    """Return what to use in place of VISSL's component `name`, or an empty string."""
    found = (text for pattern, text in NAMES.get(kind, {}).items() if fnmatchcase(name, pattern))
    return next(found, "")


def rows() -> Iterator[tuple[str, str, str]]:
    """Yield all that is absent: its kind, its name or key, and what to do."""
    for kind, names in NAMES.items():
        yield from ((kind, name, text) for name, text in names.items())
    yield from (("key", path, key.instead) for path, key in DEAD_KEYS.items())


def is_of_vissl(path: str) -> bool:
    """Tell whether VISSL's YAML may set it for a component that does not read it."""
    return any(_matches(path.removeprefix("config."), pattern) for pattern in _FOR_ANY_SOURCE)


def dead_key(path: str) -> DeadKey | None:
    """Return the entry of a key path, which starts with `config.`."""
    root, _, bare = path.partition(".")
    found = (key for pattern, key in DEAD_KEYS.items() if _matches(bare, pattern))
    return next(found, None) if root == "config" else None


def has_no_effect(path: str) -> bool:
    """Tell whether the key, or a section that contains it, is in the table."""
    names = path.split(".")
    return any(dead_key(".".join(names[:count])) for count in range(2, len(names) + 1))


def is_above_dead_keys(path: str) -> bool:
    """Tell whether the path is a section that contains a key of the table."""
    root, *names = path.split(".")
    sections = (pattern.split(".")[: len(names)] for pattern in DEAD_KEYS
                if pattern.count(".") >= len(names) > 0)  # fmt: skip
    return root == "config" and any(
        each[-1] != "*" and all(map(fnmatchcase, names, each)) for each in sections
    )


def _matches(path: str, pattern: str) -> bool:
    names, parts = path.split("."), pattern.split(".")
    return len(names) == len(parts) and all(map(fnmatchcase, names, parts))


def leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the key paths and values below `value`; a key of the table is not entered."""
    if isinstance(value, Mapping) and dead_key(path) is None:
        for key, each in value.items():
            yield from leaves(each, f"{path}.{key}")
    else:
        yield path, value
