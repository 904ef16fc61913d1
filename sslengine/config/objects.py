"""Sections as objects of their dataclasses: what OmegaConf.to_object makes, in less time.

A config is converted several times while it is resolved and read. Where a value refers to another
(${...}) or is missing (???), OmegaConf itself converts, and says what is wrong.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

from omegaconf import DictConfig, Node, OmegaConf
from omegaconf.base import Container


def declare(default: Any, **metadata: Any) -> Any:
    """Return a dataclass field with metadata; each object gets its own copy of a list or dict."""
    if isinstance(default, (list, dict)):
        return dataclasses.field(default_factory=default.copy, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def default_of(field: dataclasses.Field[Any]) -> Any:
    """Return the default of a field; MISSING if there is none."""
    made = field.default_factory
    return field.default if made is dataclasses.MISSING else made()


class _LeftToOmegaConfError(Exception):
    pass


def to_object(node: DictConfig) -> Any:
    try:
        return _made(node)
    except _LeftToOmegaConfError:
        return OmegaConf.to_object(node)


def object_of_own_keys(node: DictConfig, cls: type[Any]) -> Any:
    """Of the keys that the node's dataclass has itself, without those that were added."""
    try:
        return cls(**{key: _made(node._get_node(key)) for key in fields(cls)})  # type: ignore[arg-type]
    except _LeftToOmegaConfError:
        return cls(**OmegaConf.to_object(OmegaConf.masked_copy(node, [*fields(cls)])))  # type: ignore[arg-type]


def _made(node: Node) -> Any:
    if not isinstance(node, Container):
        value = node._value()
        if isinstance(value, Node):  # of a field of several types
            return _made(value)
        if isinstance(value, str) and ("${" in value or value == "???"):
            raise _LeftToOmegaConfError
        return value
    content: Any = node._content  # type: ignore[attr-defined]
    match content:
        case None:
            return None
        case list():
            return [_made(each) for each in content]
        case dict():
            return _section(node, {key: _made(each) for key, each in content.items()})
    raise _LeftToOmegaConfError


def _section(node: Container, values: dict[Any, Any]) -> Any:
    cls: Any = node._metadata.object_type
    declared = fields(cls)
    if not declared:
        return values
    first = {key: value for key, value in values.items() if key in declared and declared[key].init}
    try:
        made = cls(**first)
    except TypeError as error:
        raise _LeftToOmegaConfError from error
    for key, value in values.items():
        if key not in first:
            setattr(made, key, value)
    return made


@cache
def fields(cls: type[Any] | None) -> Mapping[str, dataclasses.Field[Any]]:
    """The fields of a dataclass by name; of other classes none."""
    if cls is None or not dataclasses.is_dataclass(cls):
        return MappingProxyType({})
    return MappingProxyType({field.name: field for field in dataclasses.fields(cls)})
