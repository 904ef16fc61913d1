#!/usr/bin/env python3
"""Write configs/schema.json, with which editors complete and check YAML.

python tools/config_schema.py           # or make schema
python tools/config_schema.py FILE      # write another file

It is JSON Schema (draft 7), generated from the options' dataclasses. It accepts more than the
checks of a run, which also compare values with each other and know plugins. Any value may be an
interpolation, `${...}`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from sslengine import catalog
from sslengine.absent import DEAD_KEYS, DeadKey
from sslengine.config.components import meaning_of_section, meanings, options_of
from sslengine.config.merged import Root
from sslengine.config.ranges import KEY as RANGE
from sslengine.config.ranges import ValueRange, default_of
from sslengine.config.sections import choosing_keys, components_of, join, schema
from sslengine.registry import Registry, component_key

FILE = Path(__file__).resolve().parents[1] / "configs" / "schema.json"

Schema = dict[str, Any]

_REFERENCE = r"\$\{.*"
_NUMBER = r"[-+]?[0-9.]+([eE][-+]?[0-9]+)?"
_JSON_TYPES: dict[Any, tuple[str, ...]] = {
    bool: ("boolean",),
    int: ("integer",),
    float: ("number",),
    str: ("string", "number"),
    type(None): ("null",),
}


def json_schema() -> Schema:
    """Return the schema of a whole YAML file, with all components of sslengine."""
    config = _section(Root, OmegaConf.structured(Root))
    config["properties"]["config"] = _section(OmegaConf.get_type(schema()), schema())
    for path, key in DEAD_KEYS.items():
        _put_dead(config["properties"]["config"], path.split("."), key)
    defaults: Schema = {"type": "array", "description": "Files that this one is based on."}
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "sslengine",
        "type": "object",
        "properties": {"defaults": defaults, **config["properties"]},
    }


def _section(cls: Any, node: Any = None) -> Schema:
    """Return the schema of a dataclass.

    node: its node in the config's schema, to which other dataclasses may have added sections.
    """
    if not isinstance(node, DictConfig) or node._is_none():
        node = None
    hints, said = typing.get_type_hints(cls), meanings(cls)
    properties: dict[str, Schema] = {}
    for field in dataclasses.fields(cls):
        below = node._content.get(field.name) if node is not None else None
        made = _value(hints[field.name], field, below)
        if field.name in said:
            made["description"] = said[field.name]
        properties[field.name] = made
    for key in node or ():
        if key not in properties:
            properties[str(key)] = _section(OmegaConf.get_type(node, key), node._get_node(key))
    found: Schema = {"type": ["object", "null"], "properties": properties}
    if text := meaning_of_section(cls):
        found["description"] = text
    registry = components_of(node) if node is not None else None
    found["additionalProperties"] = False
    if registry is not None:
        # Of plugins' components; arguments may be next to the name of a section's one component.
        one = node is not None and len(choosing_keys(node)) == 1
        found["additionalProperties"] = {} if one else {"type": ["object", "null"]}
        properties.update(_components(registry))
    return found


def _components(registry: Registry[Any]) -> Iterator[tuple[str, Schema]]:
    for name in _names(registry):
        options = registry.options(name)
        free: Schema = {"type": ["object", "null"]}
        yield component_key(name), free if options is None else _section(options)


def _names(registry: Registry[Any]) -> list[str]:
    """Return sslengine's names alone, because torch's differ between versions."""
    return [name for name in registry.names() if registry.owner(name).startswith("sslengine.")]


def _value(hint: Any, field: Any, node: Any) -> Schema:
    registry, allowed = field.metadata.get("registry"), field.metadata.get(RANGE)
    found = _typed(hint, node) if registry is None else _named(hint, registry)
    if allowed is not None:
        found = _add_range(found, allowed)
    default = default_of(field)
    if default is not dataclasses.MISSING and not dataclasses.is_dataclass(default):
        found["default"] = default
    return found


def _add_range(found: Schema, allowed: ValueRange) -> Schema:
    """Add the range of a number, or of the entries of a list."""
    if "items" in found:
        return {**found, "items": _add_range(found["items"], allowed)}
    reference: Schema = {"type": "string", "pattern": f"^{_REFERENCE}$"}
    ranged: Schema = {**found, **allowed.schema()} if allowed.bounded else reference
    return {"anyOf": [{"enum": list(allowed.also)}, ranged]} if allowed.also else ranged


def _named(hint: Any, registry: Registry[Any]) -> Schema:
    """Return the schema of a name (editors suggest sslengine's), or of a list of entries."""
    names = _names(registry)
    name: Schema = {"anyOf": [{"enum": names}, {"type": "string"}]}
    if hint is str:
        return name
    entry: Schema = {"type": ["object", "array", "string"], "properties": {"name": name}}
    arguments = [_arguments(registry, each) for each in names]
    if chosen := [each for each in arguments if each["then"]["properties"]]:
        entry["allOf"] = chosen
    return _list({"anyOf": [{"enum": names}, entry]})


def _arguments(registry: Registry[Any], name: str) -> Schema:
    """Return what editors say of the arguments of an entry that has this name."""
    said = _section(options_of(registry, name))["properties"]
    return {
        "if": {"type": "object", "properties": {"name": {"enum": [name]}}, "required": ["name"]},
        "then": {"properties": said},
    }


def _list(items: Schema) -> Schema:
    """Return the schema of a list, or of an interpolation that refers to one."""
    return {"type": ["array", "string"], "pattern": f"^{_REFERENCE}$", "items": items}


def _typed(hint: Any, node: Any = None) -> Schema:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        options = [_typed(each, node) for each in typing.get_args(hint)]
        structured = [each for each in options if "properties" in each]
        if structured:
            return structured[0]
        plain = all(each in _JSON_TYPES for each in typing.get_args(hint))
        return _scalar_types(typing.get_args(hint)) if plain else {"anyOf": options}
    if dataclasses.is_dataclass(hint):
        cls: Any = hint
        found = _section(join(cls), node)
        return found if join(cls) is cls else {**found, "additionalProperties": {}}
    arguments = typing.get_args(hint)
    match typing.get_origin(hint) or hint:
        case t if t is list:
            return _list(_typed(arguments[0]) if arguments else {})
        case t if t is dict:
            values = _typed(arguments[1]) if arguments else {}
            return {"type": ["object", "null"], "additionalProperties": values}
    return _scalar_types((hint,)) if hint in _JSON_TYPES else {}


def _scalar_types(hints: tuple[Any, ...]) -> Schema:
    names = sorted({name for each in hints for name in _JSON_TYPES.get(each, ())})
    if "string" in names:
        return {"type": names}
    # YAML 1.1, which editors use, reads 1e-4 as a string.
    number = f"|{_NUMBER}" if {"number", "integer"} & set(names) else ""
    return {"type": [*names, "string"], "pattern": f"^({_REFERENCE}{number})$"}


def _put_dead(node: Schema, names: list[str], key: DeadKey) -> None:
    """Add a key of VISSL that has no effect as deprecated: editors strike it through."""
    first, *rest = names
    properties = node.setdefault("properties", {})
    if first == "*":
        for each in properties.values():
            if "properties" in each:
                _put_dead(each, rest, key)
    elif rest:
        below = properties.setdefault(first, {"type": ["object", "null"]})
        _put_dead(below, rest, key)
    elif first not in properties:
        dead: Schema = {"deprecated": True, "description": f"No effect: {key.instead}"}
        if key.refused:
            dead["enum"] = list(key.accepted)
        properties[first] = dead


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", nargs="?", type=Path, default=FILE, help="what is written")
    given = parser.parse_args(arguments)
    assert catalog  # importing it declares all names
    given.file.write_text(json.dumps(json_schema(), indent=1, sort_keys=True) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
