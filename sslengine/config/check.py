"""Is every name known, does every component take its arguments, do the sections agree?

Nothing is built here; nothing is written. Fields made with `named(...)` are checked
against their registry wherever they stand in the schema, plugins' sections included.
`check_plain` reports what it can without importing a component, and with it torch.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from sslengine.config.arguments import argument_problems, loss_arguments
from sslengine.config.auto_widths import with_some_width
from sslengine.config.components import given_by_engine
from sslengine.config.merge import Merged
from sslengine.config.sections import components_of, fields_of, keys_beside, typed_nodes
from sslengine.errors import ConfigError, UnknownNameError, UntrustedError
from sslengine.registry import HEADS, SCHEDULERS, Registry, component_key


def check_plain(merged: Merged) -> None:
    """Raise one ConfigError that tells all unknown names and all that sections find wrong."""
    for registry, value, path in _named_values(merged.root):
        merged.problems.extend(_spelling_problems(registry, value, path))
    for path, node in typed_nodes(merged.root.config):
        # What refers to the options of a component is looked at when they are there.
        with suppress(OmegaConfBaseException):
            merged.problems.extend(_told_by_section(node, path, "check"))
    merged.raise_problems()


def check(merged: Merged) -> None:
    """Raise one ConfigError that tells all that is wrong."""
    for registry, value, path in _named_values(merged.root):
        merged.problems.extend(_name_problems(registry, value, path))
    # What a section asks of its components can be asked of the right ones alone.
    verbs = ("check",) if merged.problems else ("check", "check_chosen")
    for path, node in typed_nodes(merged.root.config):
        merged.problems.extend(_number_problems(node, path))
        for verb in verbs:
            merged.problems.extend(_told_by_section(node, path, verb))
        merged.problems.extend(_free_component_problems(node, path))
        merged.problems.extend(_argument_problems(node, path))
        merged.problems.extend(_beside_problems(node, path))
    merged.raise_problems()


def _named_values(root: DictConfig) -> Iterator[tuple[Registry[Any], Any, str]]:
    """The names of components, or the entries with their names, and their key paths."""
    for path, node in (*typed_nodes(root.config), ("", root)):
        for key, field in fields_of(node).items():
            registry = field.metadata.get("registry")
            if registry is not None:
                yield registry, _value_of(node, key), f"{path}.{key}".lstrip(".")


def _value_of(node: DictConfig, key: str) -> Any:
    """None where it refers to something that is not in the config yet."""
    try:
        value = node[key]
    except OmegaConfBaseException:
        return None
    return OmegaConf.to_container(value) if OmegaConf.is_config(value) else value


def _number_problems(node: DictConfig, path: str) -> Iterator[str]:
    """Numbers that are none, and infinite ones where nothing says that they may be."""
    for key, field in fields_of(node).items():
        value = node._get_node(key)
        if isinstance(value, DictConfig) and fields_of(value):
            continue  # a section of its own
        component = "registry" in field.metadata  # its arguments are its own affair
        infinite = component or bool(field.metadata.get("infinite"))
        for place, number in _floats(_value_of(node, key), f"{path}.{key}"):
            if math.isnan(number) or (math.isinf(number) and not infinite):
                yield f"{place}: expected a finite number, got {number}."


def _floats(value: Any, path: str) -> Iterator[tuple[str, float]]:
    match value:
        case float():
            yield path, value
        case Mapping():
            for key, each in value.items():
                yield from _floats(each, f"{path}.{key}")
        case [*entries]:
            for index, each in enumerate(entries):
                yield from _floats(each, f"{path}.{index}")


def _spelling_problems(registry: Registry[Any], value: Any, path: str) -> Iterator[str]:
    """Names that nothing can have. What an entry is to be made of is not looked at."""
    match value:
        case str() if value and not registry.may_know(value):
            yield str(registry.unknown(value, path))
        case {"name": str()}:
            yield from _spelling_problems(registry, registry.name_in(value, path), path)
        case [str(name), Mapping()]:  # or two entries; its `name` may be an argument
            yield from _spelling_problems(registry, name, path)
        case [*entries]:
            for index, each in enumerate(entries):
                yield from _spelling_problems(registry, each, f"{path}.{index}")


def _name_problems(registry: Registry[Any], value: Any, path: str) -> Iterator[str]:
    """`value`: a name, or entries `name`, `{name: ..., its arguments}`, `[name, {...}]`."""
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
        yield from _call_problems(registry, value[0], value[1], path)
    else:
        for index, each in enumerate(value):
            yield from _name_problems(registry, each, f"{path}.{index}")


def _is_pair(registry: Registry[Any], value: Any) -> bool:
    """`[name, {...}]`. More may follow: what is read of it is for the section to say."""
    match value:
        case [str(first), Mapping() as arguments, *more]:
            # With a name in it, it is the second of a list of names and of entries.
            return "name" not in arguments or (not more and _takes_a_name(registry, first))
    return False


def _takes_a_name(registry: Registry[Any], name: str) -> bool:
    try:
        return "name" in inspect.signature(registry.get(name)).parameters
    except (UnknownNameError, TypeError, ValueError):
        return False


def _resolve_problems(registry: Registry[Any], name: str, path: str) -> Iterator[str]:
    if name in registry:
        return  # what ships with sslengine is imported where it is built
    try:
        registry.get(name, path)
    except UntrustedError:
        raise
    except ConfigError as error:
        yield str(error)
        return
    yield from _kind_problems(registry, name, path)


def _kind_problems(registry: Registry[Any], name: str, path: str) -> Iterator[str]:
    """Of a dotted path, which may point to anything."""
    if ":" in name and (expected := registry.unfit(name, path)):
        thing = registry.get(name, path)
        yield f"{path}: {name!r} is no {registry.kind}: expected {expected}, got {thing!r}."


def _call_problems(
    registry: Registry[Any], name: str, arguments: Mapping[str, Any], path: str
) -> Iterator[str]:
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
    given = with_some_width(arguments) if registry is HEADS else arguments
    if options is None:
        by_engine = given_by_engine(registry, thing)
        if registry.takes_foreign and hasattr(thing, "from_config"):
            return
        if registry.takes_foreign:
            by_engine = (*by_engine, *loss_arguments(thing, {*arguments, *by_engine}))
        yield from argument_problems(thing, given, path, by_engine)
        return
    problems = argument_problems(options, given, path)
    yield from problems
    if not problems and hasattr(options, "check"):
        yield from (f"{path}.{text}" for text in options(**given).check())


def _told_by_section(node: DictConfig, path: str, verb: str) -> Iterator[str]:
    """What the section says itself: see sections.py."""
    if hasattr(OmegaConf.get_type(node), verb):
        for text in getattr(OmegaConf.to_object(node), verb)():
            yield f"{path}.{text}"


def _free_component_problems(node: DictConfig, path: str) -> Iterator[str]:
    """Options of components that have no dataclass: their signature is the schema."""
    registry = components_of(node)
    if registry is None:
        return
    names = _chosen_names(node, registry)
    for key, value in node.items():
        if isinstance(value, DictConfig) and not fields_of(value):
            arguments: Any = OmegaConf.to_container(value)
            name = names.get(str(key), str(key))
            yield from _call_problems(registry, name, arguments, f"{path}.{key!s}")


def _argument_problems(node: DictConfig, path: str) -> Iterator[str]:
    """Of a component whose arguments stand in another field than its name."""
    for key, field in fields_of(node).items():
        arguments = field.metadata.get("arguments")
        if not arguments:
            continue
        registry, name = field.metadata["registry"], node[key]
        if name and not [*_name_problems(registry, name, "")]:
            given = _value_of(node, arguments)
            yield from _call_problems(registry, name, given, f"{path}.{arguments}")


def _beside_problems(node: DictConfig, path: str) -> Iterator[str]:
    """Of components whose arguments are keys of the section itself."""
    beside = keys_beside(node)
    if beside is None or beside[1] is SCHEDULERS:  # schedules are built in `check`
        return
    _, registry, chosen_by = beside
    for name in node[chosen_by]:
        if registry.is_open(name) and (options := registry.options(name)):
            keys = [field.name for field in dataclasses.fields(options)]
            given = {key: _value_of(node, key) for key in keys}
            said = {key: value for key, value in given.items() if value is not None}
            yield from _call_problems(registry, name, said, path)


def _chosen_names(node: DictConfig, registry: Registry[Any]) -> dict[str, str]:
    """The key of each chosen component's section -> its name, which may be a dotted path."""
    chosen: list[str] = []
    for key, field in fields_of(node).items():
        if field.metadata.get("registry") == registry:
            chosen.extend([node[key]] if isinstance(node[key], str) else node[key])
    return {component_key(name): name for name in chosen}
