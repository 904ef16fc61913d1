"""Keys that components add to the section that names them: see `beside`.

A key of a component that is not chosen is a mistake, unless an earlier place set it, for the
component that the section named then, or it has the value that the component has by itself, as in
the file of an earlier run, which holds every key.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import suppress

from omegaconf import DictConfig, OmegaConf

from sslengine.absent import is_of_vissl
from sslengine.config.components import belongs_to, keys_of, options_of, owners_of
from sslengine.config.hold_out import sources_from_train
from sslengine.config.merge import Merged
from sslengine.config.objects import default_of, fields
from sslengine.config.places import Places
from sslengine.config.sections import (
    fields_of,
    keys_beside,
    move,
    new_node,
    put_in,
    typed_nodes,
    with_chosen,
)
from sslengine.errors import ConfigError
from sslengine.registry import SCHEDULERS


def settle_keys_beside(merged: Merged, places: Places) -> None:
    """Drop what has been replaced, and note what belongs to a component that is not chosen."""
    for path, node in typed_nodes(merged.root.config):
        beside = keys_beside(node)
        if beside is None or beside[1] is SCHEDULERS:  # these have more rules: schedules.py
            continue
        cls, registry, key = beside
        own = {field.name for field in dataclasses.fields(cls)}
        chosen = [node[key]] if isinstance(node[key], str) else list(node[key])
        chosen = chosen or sources_from_train(merged.root.config, path)
        with suppress(ConfigError):  # told by the check of names
            theirs = keys_of(registry, chosen)
            for name in fields_of(node).keys() - own - theirs:
                merged.problems.extend(_settle(merged, places, path, node, name, chosen))


def _settle(
    merged: Merged, places: Places, path: str, node: DictConfig, name: str, chosen: Sequence[str]
) -> Iterator[str]:
    _, registry, key = keys_beside(node)  # type: ignore[misc]
    value, where = node[name], f"{path}.{name}"
    if value is None:
        return
    owners = owners_of(registry, name)
    default = default_of(fields(options_of(registry, owners[0]))[name])  # type: ignore[arg-type]
    if places.of(where) < places.of(f"{path}.{key}") or value == default:
        node[name] = None
        places.forget(where)
        return
    text = f"{belongs_to(registry, name, owners)}; here {' and '.join(chosen) or 'none'} is chosen"
    if is_of_vissl(where):
        merged.warnings.append(f"{where} has no effect: it {text} ({places.origins.get(where)})")
        node[name] = None
        places.forget(where)
    else:
        yield f"{where}: it {text}. Set by {places.origins.get(where)}."


def keep_chosen(config: DictConfig) -> None:
    """Replace each section of this kind by one that has the keys of the chosen components alone."""
    for path, node in list(typed_nodes(config, "")):
        beside = keys_beside(node)
        if beside is not None:
            cls, _, key = beside
            chosen = [node[key]] if isinstance(node[key], str) else list(node[key])
            kept = new_node(with_chosen(cls, filter(None, chosen)))
            own = {field.name for field in dataclasses.fields(cls)}
            for name in fields_of(kept).keys() & fields_of(node).keys():
                if name in own or node[name] is not None:
                    move(node, name, kept)
            parent, _, last = path.removeprefix(".").rpartition(".")
            put_in(OmegaConf.select(config, parent) if parent else config, last, kept)
