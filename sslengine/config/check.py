"""Check that names are known, that components take their arguments, and that sections agree.

Nothing is built or changed. Fields made with `named(...)` are checked against their registry
anywhere in the schema, including plugins' sections. `check_own_keys` reports the problems that can
be found without importing components, which import torch.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import chain
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from sslengine.config import vissl
from sslengine.config.components import (
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
from sslengine.errors import ConfigError, UnknownNameError, UntrustedError, is_unicode
from sslengine.registry import HEADS, SCHEDULERS, Registry, component_key


def check_own_keys(merged: Merged) -> None:
    """Raise one ConfigError with all unknown names and all problems that sections report."""
    nodes = list(typed_nodes(merged.config))
    for registry, value, path in _named_values(merged.root, nodes):
        merged.problems.extend(_spelling_problems(registry, value, path))
    # An interpolation may refer to options of a component, which are merged later.
    with suppress(OmegaConfBaseException):
        for path, section in convert_nodes(merged.config, nodes):
            merged.problems.extend(f"{path}.{text}" for text in section_problems(section))
    merged.raise_problems()


def check(merged: Merged) -> None:
    """Raise one ConfigError with all problems."""
    nodes = list(typed_nodes(merged.config))
    for registry, value, path in _named_values(merged.root, nodes):
        merged.problems.extend(_name_problems(registry, value, path))
        clashes = (registry.clash(name) for name, _ in named_entries(registry, value))
        merged.warnings.extend(f"{path}: {clash}" for clash in clashes if clash)
    named = not merged.problems  # `check_chosen` imports components: their names must be right
    sections = convert_nodes(merged.config, nodes)
    for (path, node), (_, section) in zip(nodes, sections, strict=True):
        merged.problems.extend(_value_problems(section, path))
        found = section_problems(section)
        if named and hasattr(section, "check_chosen"):
            found = chain(found, section.check_chosen())
        merged.problems.extend(f"{path}.{text}" for text in found)
        for call in _component_calls(node, path):
            merged.problems.extend(_call_problems(*call))
    merged.problems.extend(vissl.find_schedule_problems(merged))
    merged.raise_problems()


def _named_values(
    root: DictConfig, nodes: list[tuple[str, DictConfig]]
) -> Iterator[tuple[Registry[Any], Any, str]]:
    """Yield the registry, the name (or the entries with names) and the key path of components."""
    for path, node in (*nodes, ("", root)):
        for key, field in fields_of(node).items():
            registry = field.metadata.get("registry")
            if registry is not None:
                yield registry, _value_of(node, key), f"{path}.{key}".lstrip(".")


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


def _spelling_problems(registry: Registry[Any], value: Any, path: str) -> Iterator[str]:
    """Yield problems of unknown names. The form of entries is checked later."""
    match value:
        case str() if value and not registry.may_know(value):
            yield str(registry.unknown(value, path))
        case {"name": str()}:
            yield from _spelling_problems(registry, registry.name_in(value, path), path)
        case [str(name), Mapping()]:  # or a list of two entries; a `name` may be an argument
            yield from _spelling_problems(registry, name, path)
        case [*entries]:
            for index, each in enumerate(entries):
                yield from _spelling_problems(registry, each, f"{path}.{index}")


def _name_problems(registry: Registry[Any], value: Any, path: str) -> Iterator[str]:
    """Check a name, or entries `name`, `{name: ..., its arguments}`, `[name, {...}]`."""
    if value is None or value == "":
        return
    if isinstance(value, str):
        yield from _resolve_problems(registry, value, path)
    elif isinstance(value, Mapping):
        arguments = {str(k): each for k, each in value.items() if k not in registry.entry_keys}
        if "name" not in value:
            yield f"{path}: this entry has no `name`."
        else:
            yield from _call_problems(registry, registry.name_in(value, path), arguments, path)
    elif _is_pair(registry, value):
        yield from _call_problems(registry, value[0], value[1], path, f"{path}.1")
    else:
        for index, each in enumerate(value):
            yield from _name_problems(registry, each, f"{path}.{index}")


def _is_pair(registry: Registry[Any], value: Any) -> bool:
    """Tell whether it is `[name, {...}]`. More entries may follow; the section checks them."""
    match value:
        case [str(first), Mapping() as arguments, *more]:
            # A dict with a `name` is the second entry of a list of components.
            return "name" not in arguments or (not more and _takes_a_name(registry, first))
    return False


def _takes_a_name(registry: Registry[Any], name: str) -> bool:
    try:
        return "name" in inspect.signature(registry.get(name)).parameters
    except (UnknownNameError, TypeError, ValueError):
        return False


def _resolve_problems(registry: Registry[Any], name: str, path: str) -> Iterator[str]:
    if not registry.is_users(name):
        return
    try:
        registry.get(name, path)
    except UntrustedError:
        raise
    except ConfigError as error:
        yield str(error)
        return
    yield from _kind_problems(registry, name, path)


def _kind_problems(registry: Registry[Any], name: str, path: str) -> Iterator[str]:
    """Yield the problem of a class or function of the user's that is of another kind."""
    if registry.is_users(name) and (expected := registry.unfit(name, path)):
        thing = registry.get(name, path)
        problem = f"cannot be used as {registry.kind}: expected {expected}, got {thing!r}"
        yield f"{path}: {name!r} {problem}."


def _call_problems(
    registry: Registry[Any],
    name: str,
    arguments: Mapping[str, Any],
    path: str,
    arguments_at: str = "",
) -> Iterator[str]:
    """Check the call of a component. path: of the name, and by default of its arguments."""
    where = arguments_at or path
    try:
        thing = registry.get(name, path)
    except UntrustedError:
        raise
    except ConfigError as error:
        yield str(error)
        return
    problems = list(_kind_problems(registry, name, path))
    if problems:
        yield from problems
        return
    options = registry.options(name, path)
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


def _component_calls(
    node: DictConfig, path: str
) -> Iterator[tuple[Registry[Any], str, Mapping[str, Any], str]]:
    """Yield registry, name, arguments and their key path of components without a typed section."""
    registry = components_of(node)
    if registry is not None:  # the signature is the schema of the component's own section
        chosen = (name for key in choosing_keys(node) for name in _names(node[key]))
        names = {component_key(name): name for name in chosen}
        for key, value in node.items():
            if isinstance(value, DictConfig) and not fields_of(value):
                arguments: Any = OmegaConf.to_container(value)
                yield registry, names.get(str(key), str(key)), arguments, f"{path}.{key!s}"
    for key, field in fields_of(node).items():  # the arguments stand in another field
        if taken := field.metadata.get("arguments"):
            by: Registry[Any] = field.metadata["registry"]
            if node[key] and not [*_name_problems(by, node[key], "")]:
                yield by, node[key], _value_of(node, taken), f"{path}.{taken}"
    found = find_host(node)
    if found is None or found.components is SCHEDULERS:  # schedules are built in `check`
        return
    for name in node[found.chosen_by]:  # the arguments are keys of the section itself
        if name in found.components.open_names() and (options := found.components.options(name)):
            given = {key: _value_of(node, key) for key in fields(options)}
            said = {key: value for key, value in given.items() if value is not None}
            yield found.components, name, said, path


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
