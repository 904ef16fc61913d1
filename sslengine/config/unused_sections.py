"""Sections of components that are not chosen: `LOSS.dino_loss` where `LOSS.name` is another loss.

What a later place sets, or the command line, was meant to have an effect: a warning says that it
has none. A file may hold sections of several losses, and a file based on it may choose another.
"""

from __future__ import annotations

from sslengine.config.merge import Merged
from sslengine.config.places import Places
from sslengine.config.sections import choosing_keys, fields_of, typed_nodes
from sslengine.registry import component_key


def warn_of_unused_sections(merged: Merged, places: Places) -> None:
    for path, node in typed_nodes(merged.root.config):
        keys = choosing_keys(node)
        if not keys:
            continue
        chosen = [name for key in keys for name in _names(node[key])]
        since = max(places.of(f"{path}.{key}") for key in keys)
        used = {*fields_of(node), *map(component_key, chosen)}
        for where in (f"{path}.{name}" for name in map(str, node) if name not in used):
            if places.of(where) > since or places.of(where) == places.command_line:
                text = f"{path}.{keys[-1]} is {' and '.join(chosen) or 'empty'}"
                merged.warnings.append(f"{where} has no effect: {text}")


def _names(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) and value else [*value]
