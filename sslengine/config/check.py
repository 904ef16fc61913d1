"""Check that names are known, that components take their arguments, and that sections agree.

Nothing is built or changed. Fields made with `named(...)` are checked against their registry
anywhere in the schema, including plugins' sections. `check_own_keys` reports the problems that can
be found without importing components, which import torch.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import chain
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from sslengine.config import vissl
from sslengine.config.components import (
    Entry,
    argument_problems,
    given_by_engine,
    loss_arguments,
    named_entries,
)
from sslengine.config.facts import fill_auto
from sslengine.config.merged import Merged
from sslengine.config.ranges import KEY as RANGE
from sslengine.config.ranges import fields, leaves
from sslengine.config.sections import (
    choosing_keys,
    components_of,
    convert_nodes,
    fields_of,
    find_host,
    section_problems,
    typed_nodes,
)
from sslengine.errors import ConfigError, UntrustedError, is_unicode
from sslengine.registry import HEADS, SCHEDULERS, Registry, component_key


def check_own_keys(merged: Merged) -> None:
    """Raise one ConfigError with all unknown names and all problems that sections report."""
    nodes = list(typed_nodes(merged.config))
    for registry, entry in _entries(merged.root, nodes):
        if entry.name and not registry.may_know(entry.name):
            merged.problems.append(str(registry.unknown(entry.name, entry.path)))
    # An interpolation may refer to options of a component, which are merged later.
    with suppress(OmegaConfBaseException):
        for path, section in convert_nodes(merged.config, nodes):
            merged.problems.extend(f"{path}.{text}" for text in section_problems(section))
    merged.raise_problems()


def check(merged: Merged) -> None:
    """Raise one ConfigError with all problems."""
    nodes = list(typed_nodes(merged.config))
    for registry, entry in _entries(merged.root, nodes):
        merged.problems.extend(_entry_problems(registry, entry))
        if clash := registry.clash(entry.name):
            merged.warnings.append(f"{entry.path}: {clash}")
    named = not merged.problems  # `check_chosen` imports components: their names must be right
    sections = convert_nodes(merged.config, nodes)
    for (path, node), (_, section) in zip(nodes, sections, strict=True):
        merged.problems.extend(_value_problems(section, path))
        found = section_problems(section)
        if named and hasattr(section, "check_chosen"):
            found = chain(found, section.check_chosen())
        merged.problems.extend(f"{path}.{text}" for text in found)
        for registry, entry in _component_calls(node, path):
            merged.problems.extend(_entry_problems(registry, entry))
    merged.problems.extend(vissl.find_schedule_problems(merged))
    merged.raise_problems()


def _entries(
    root: DictConfig, nodes: list[tuple[str, DictConfig]]
) -> Iterator[tuple[Registry[Any], Entry]]:
    """Yield what the config names, and the registry of each."""
    for path, node in (*nodes, ("", root)):
        for key, field in fields_of(node).items():
            registry = field.metadata.get("registry")
            if registry is not None:
                place = f"{path}.{key}".lstrip(".")
                for entry in named_entries(registry, _value_of(node, key), place):
                    yield registry, entry


def _value_of(node: DictConfig, key: str) -> Any:
    """Return the value; None if it refers to a key that is not in the config yet."""
    try:
        value = node[key]
    except OmegaConfBaseException:
        return None
    return OmegaConf.to_container(value) if OmegaConf.is_config(value) else value


def _value_problems(section: Any, path: str) -> Iterator[str]:
    """Yield problems of NaN, of infinity in fields that do not allow it, and of texts that no file
    can hold: names of files may be any bytes. Of fields with a range that says it: ranges.py.

    Sections inside are checked separately.
    """
    for field in dataclasses.fields(section):
        if RANGE in field.metadata:
            continue
        component = "registry" in field.metadata  # its arguments may be infinite
        infinite = component or bool(field.metadata.get("infinite"))
        for place, value in leaves(getattr(section, field.name), f"{path}.{field.name}"):
            if isinstance(value, float) and (math.isnan(value) or math.isinf(value) > infinite):
                yield f"{place}: expected a finite number, got {value}."
            if isinstance(value, str) and not is_unicode(value):
                yield (
                    f"{place}: {value} is not UTF-8, and config.yaml is. Rename it, or give a "
                    f"link to it: ln -s."
                )


def _entry_problems(registry: Registry[Any], entry: Entry) -> Iterator[str]:
    """Check a name, and the arguments that stand with it."""
    path, name, arguments, where = entry
    if not name:
        yield f"{path}: this entry has no `name`."
    if not name or (arguments is None and not registry.is_users(name)):
        return
    try:
        thing = registry.get(name, path)
    except UntrustedError:
        raise
    except ConfigError as error:
        yield str(error)
        return
    if registry.is_users(name) and (expected := registry.unfit(name, path)):
        problem = f"cannot be used as {registry.kind}: expected {expected}, got {thing!r}"
        yield f"{path}: {name!r} {problem}."
    elif arguments is not None:
        yield from _call_problems(registry, name, thing, arguments, where)


def _call_problems(
    registry: Registry[Any], name: str, thing: Any, arguments: Mapping[str, Any], where: str
) -> Iterator[str]:
    """Check the arguments of a component; where: their key path."""
    options = registry.options(name)
    given = fill_auto(arguments) if registry is HEADS else arguments
    if options is None:
        by_engine = given_by_engine(registry, thing)
        if registry.takes_foreign and hasattr(thing, "from_config"):
            return
        if registry.takes_foreign:
            by_engine = (*by_engine, *loss_arguments(thing, {*arguments, *by_engine}))
        yield from argument_problems(thing, given, where, by_engine)
        return
    problems = argument_problems(options, given, where)
    yield from problems
    if not problems:
        yield from (f"{where}.{text}" for text in section_problems(options(**given)))


def _component_calls(node: DictConfig, path: str) -> Iterator[tuple[Registry[Any], Entry]]:
    """Yield the components whose arguments are not in a typed section."""
    registry = components_of(node)
    if registry is not None:  # the signature is the schema of the component's own section
        chosen = (name for key in choosing_keys(node) for name in _names(node[key]))
        names = {component_key(name): name for name in chosen}
        for key, value in node.items():
            if isinstance(value, DictConfig) and not fields_of(value):
                arguments: Any = OmegaConf.to_container(value)
                where, name = f"{path}.{key!s}", names.get(str(key), str(key))
                yield registry, Entry(where, name, arguments, where)
    for key, field in fields_of(node).items():  # the arguments stand in another field
        if taken := field.metadata.get("arguments"):
            by: Registry[Any] = field.metadata["registry"]
            named = named_entries(by, node[key])
            if node[key] and not [text for each in named for text in _entry_problems(by, each)]:
                where = f"{path}.{taken}"
                yield by, Entry(where, node[key], _value_of(node, taken), where)
    found = find_host(node)
    if found is None or found.components is SCHEDULERS:  # schedules are built in `check`
        return
    for name in node[found.chosen_by]:  # the arguments are keys of the section itself
        if name in found.components.open_names() and (options := found.components.options(name)):
            given = {key: _value_of(node, key) for key in fields(options)}
            said = {key: value for key, value in given.items() if value is not None}
            yield found.components, Entry(path, name, said, path)


# ---- what is set and has no effect, or not the one that was meant


def warn_of_unused_sections(merged: Merged) -> None:
    """Warn of sections of components that are not chosen: `LOSS.dino_loss` of another loss.

    What a later place sets, or the command line, was meant to have an effect. A file may hold
    sections of several losses, and a file based on it may choose another.
    """
    for path, node in typed_nodes(merged.config):
        keys = choosing_keys(node)
        if not keys:
            continue
        chosen = [name for key in keys for name in _names(node[key])]
        since = max(merged.place(f"{path}.{key}") for key in keys)
        used = {*fields_of(node), *map(component_key, chosen)}
        for where in (f"{path}.{name}" for name in map(str, node) if name not in used):
            if merged.place(where) > since or merged.place(where) == merged.command_line:
                text = f"{path}.{keys[-1]} is {' and '.join(chosen) or 'empty'}"
                merged.warnings.append(f"{where} has no effect: {text}")


def _names(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) and value else [*value]


def warn_of_late_epochs(merged: Merged) -> None:
    """Warn of what has more epochs than the run: warm-ups (`epochs(...)`), frozen parameters."""
    config, run = merged.config, merged.config.OPTIMIZER.num_epochs
    for path, node in typed_nodes(config) if run else ():
        for key, field in fields_of(node).items():
            if field.metadata.get("epochs") and node[key] > run:
                merged.warnings.append(
                    f"{path}.{key} is {node[key]}, but the run has {run} epochs "
                    f"(config.OPTIMIZER.num_epochs): it ends before the warm-up does"
                )
    for entry in config.MODEL.TEMP_FROZEN_PARAMS_EPOCH_MAP if run else ():
        match entry:
            case [str(name), int(epochs)] if epochs >= run:
                merged.warnings.append(
                    f"config.MODEL.TEMP_FROZEN_PARAMS_EPOCH_MAP: {name} is frozen for {epochs} "
                    f"epochs, and the run has {run} (config.OPTIMIZER.num_epochs): it is never "
                    f"trained"
                )
