"""The options of a component: the dataclass that it brings, or one made of its signature."""

from __future__ import annotations

import copyreg
import dataclasses
import inspect
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from sslengine.errors import listing
from sslengine.registry import DATA_SOURCES, Registry

_MANY = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def options_of(registry: Registry[Any], name: str) -> type[Any]:
    """Of what `registry` has under this name."""
    given = registry.options(name)
    if given is not None:
        return given
    if registry is DATA_SOURCES:
        return _Nothing  # they are made with the whole section
    thing = registry.get(name)
    return _of_signature(thing, given_by_engine(registry, thing))


def given_by_engine(registry: Registry[Any], thing: Any) -> tuple[str, ...]:
    """The arguments that YAML may not set: some are passed first, under any name."""
    first = list(_parameters(thing))[:1] if registry.takes_first else []
    return (*registry.engine_arguments, *first)


def belongs_to(registry: Registry[Any], key: str, owners: Sequence[str]) -> str:
    return f"is a key of the {registry.kind}{'s' * (len(owners) > 1)} {listing(owners)}"


def owners_of(registry: Registry[Any], key: str) -> list[str]:
    """The components that have such a key, of those for which nothing has to be imported."""
    known = (name for name in registry.names() if registry.is_open(name))
    return [name for name in known if key in keys_of(registry, [name])]


def keys_of(registry: Registry[Any], names: Sequence[str]) -> set[str]:
    return {each.name for name in names for each in dataclasses.fields(options_of(registry, name))}


def named_entries(registry: Registry[Any], value: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The names in the value of a field made with `named`, each with its arguments."""
    match value:
        case str() if value:
            yield value, {}
        case Mapping() if "name" in value:
            yield registry.name_in(value), value
        case [str(name), Mapping() as arguments, *_] if "name" not in arguments:
            yield name, arguments
        case [*entries]:
            for each in entries:
                yield from named_entries(registry, each)


class Made(type):
    """Of dataclasses that are made while the program runs: pickled by the call that makes them."""


def _reduced(cls: type[Any]) -> Any:
    """A class that is written in a file is pickled by its name."""
    return vars(cls).get("made_by", cls.__qualname__)


copyreg.pickle(Made, _reduced)  # type: ignore[arg-type]


class _OfSignature(metaclass=Made):
    pass


@dataclasses.dataclass
class _Nothing:
    pass


@cache
def _of_signature(thing: Any, by_engine: Sequence[str]) -> type[Any]:
    hints = type_hints(thing)
    fields = [
        (name, hints.get(name, Any) | None if required else hints.get(name, Any),
         dataclasses.field(default=None) if required else _default(each.default))
        for name, each in _parameters(thing).items()
        if name not in by_engine and each.kind not in _MANY
        for required in [each.default is each.empty]
    ]  # fmt: skip
    more = {"described_by": thing, "made_by": (_of_signature, (thing, by_engine))}  # meanings.py
    name = str(getattr(thing, "__name__", thing))
    return dataclasses.make_dataclass(name, fields, bases=(_OfSignature,), namespace=more)


def is_of_signature(options: type[Any]) -> bool:
    return issubclass(options, _OfSignature)


def _default(value: Any) -> Any:
    if isinstance(value, (list, dict)):
        return dataclasses.field(default_factory=value.copy)
    return dataclasses.field(default=value)


def _parameters(thing: Any) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(thing).parameters
    except (TypeError, ValueError):
        return {}  # a C function without a signature


def type_hints(thing: Any) -> dict[str, Any]:
    """Of its arguments, where they can be read."""
    function: Callable[..., Any] = thing.__init__ if isinstance(thing, type) else thing  # type: ignore[misc]
    try:
        return typing.get_type_hints(function)
    except (NameError, TypeError, AttributeError):
        return {}
