"""Resolve a command line to a frozen config. Other packages enter this folder here."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from omegaconf import DictConfig, OmegaConf

from sslengine.config import vissl
from sslengine.config.check import (
    check,
    check_own_keys,
    warn_of_late_epochs,
    warn_of_unused_sections,
)
from sslengine.config.components import named_entries
from sslengine.config.compose import Composition, compose, compose_on, typed
from sslengine.config.derive import choose_collators, derive, replace_removed_backend
from sslengine.config.files import Layer
from sslengine.config.merge import merge
from sslengine.config.merged import Merged
from sslengine.config.sections import path_of, read, replaced
from sslengine.config.stored import Path
from sslengine.errors import ConfigError
from sslengine.registry import LOSSES, component_key, load_plugins
from sslengine.startup import pause_garbage_collection
from sslengine.trust import Opened, closed


@dataclass(frozen=True)
class Resolved:
    """The resolved config of a run. `config` is read-only, also after pickling."""

    config: DictConfig
    engine_name: str
    node_id: int
    origins: dict[str, str]
    warnings: tuple[str, ...]
    name: str
    # Interpolations that read the environment, as text: see stored.py.
    texts: Mapping[Path, str] = field(default_factory=dict)
    # The file that the config was read from, if it is not trusted: see trust.py.
    opened: Opened | None = None
    # config=... KEY=VALUE, for a command; none: it is a part of another run, or made of objects.
    arguments: tuple[str, ...] = ()


def resolve(
    arguments: Sequence[str], config_dirs: Sequence[str] = (), trusted: bool = False
) -> Resolved:
    """Resolve the arguments of a command line. trusted: also files in the folders of runs."""
    return freeze(compose(arguments, config_dirs, trusted))


def resolve_dict(tree: dict[str, object], name: str = "python", engine: str = "train") -> Resolved:
    """Resolve a config made in Python; `tree` has the keys below `config`."""
    layer = Layer("the given dict", {"engine_name": engine, "config": _plain(tree)})
    return freeze(Composition([layer], [], name))


def _plain(value: Any) -> Any:
    """Replace numpy's numbers and lists, which a config does not take, by Python's."""
    match value:
        case Mapping():
            return {key: _plain(each) for key, each in value.items()}
        case list() | tuple():
            return [_plain(each) for each in value]
        case int():  # also True and False, whose index is a number
            return value
    if hasattr(value, "tolist"):
        return value.tolist()
    with suppress(TypeError):
        return operator.index(value)
    return value


def freeze(composition: Composition, judged: bool = False) -> Resolved:
    """Load plugins, merge onto the schema, check, derive, make read-only.

    judged: nothing is trained, so nothing is said of the length of its training.
    """
    load_plugins(_plugins(composition))
    composition = vissl.read_models(composition)
    with pause_garbage_collection():  # thousands of nodes, of which most are kept
        merged = merge(composition, _check_own_keys)
        vissl.warn_of_keys_without_effect(merged)
        warn_of_unused_sections(merged)
        choose_collators(merged)
        check(merged)
        derive(merged)
        if not judged:
            warn_of_late_epochs(merged)
        OmegaConf.set_readonly(merged.config, True)
    return Resolved(
        config=merged.config,
        engine_name=merged.root.engine_name,
        node_id=merged.root.node_id,
        origins=merged.origins,
        warnings=tuple(merged.warnings),
        name=composition.name,
        texts=merged.texts,
    )


def _check_own_keys(merged: Merged) -> None:
    replace_removed_backend(merged)
    vissl.settle_length(merged)
    vissl.read_ibot_head(merged)
    check_own_keys(merged)


def sections_of(given: Sequence[str], kinds: Sequence[type[Any]]) -> list[Any]:
    """Return sections without the rest of a config: defaults, and what SECTION.KEY=VALUE sets."""
    merged = merge(compose_on(Layer("--set", {}), typed(given), ""), _check_own_keys)
    paths = [path_of(each) for each in kinds]
    for key in merged.origins:
        if not key.startswith(tuple(f"config.{path}." for path in paths)):
            raise ConfigError(f"--set {key}: expected a key of {', '.join(paths)}.")
    return [read(merged.config, each) for each in kinds]


def changed(resolved: Resolved, values: Mapping[str, object], engine_name: str) -> Resolved:
    """Resolve the config with other values, by their paths below `config`, for another engine."""
    tree: Any = OmegaConf.to_container(resolved.config)
    for path, value in values.items():
        *parents, key = path.split(".")
        node = tree
        for name in parents:
            node = node.setdefault(name, {})
        for before in named_entries(LOSSES, node.get(key)):
            if ":" in before.name:  # its section is known by its name alone
                node.pop(component_key(before.name), None)
        node[key] = value
    layer = Layer(resolved.name, {"engine_name": engine_name, "config": tree})
    with closed(resolved.opened):
        found = freeze(Composition([layer], [], resolved.name))
    return replace(found, node_id=resolved.node_id, opened=resolved.opened)


def settled(resolved: Resolved, path: str, value: object, reason: str) -> Resolved:
    """Return a copy with a value that depends on the data; path: below `config`."""
    origins = {**resolved.origins, f"config.{path}": f"derived: {reason}"}
    return replace(resolved, config=replaced(resolved.config, {path: value}), origins=origins)


def _plugins(composition: Composition) -> list[str]:
    """Return config.PLUGINS; plugins are imported first, because they extend the schema."""
    plugins = composition.last_value("config.PLUGINS") or []
    if not isinstance(plugins, list) or not all(isinstance(each, str) for each in plugins):
        raise ConfigError(
            f"config.PLUGINS: expected a list of modules such as [my_package.my_method], "
            f"got {plugins!r}."
        )
    return plugins
