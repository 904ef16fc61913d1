"""The options of a component: the dataclass that it brings, or one made of its signature.

The meaning of each key is the comment above its field in the dataclass that declares it. Of a
component without a dataclass: what its docstring says of its arguments, `name: text`.
"""

from __future__ import annotations

import ast
import copyreg
import dataclasses
import inspect
import re
import textwrap
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from sslengine.config.objects import declare
from sslengine.errors import listing
from sslengine.registry import DATA_SOURCES, Registry

_ARGUMENT = re.compile(r"\s*(\w+(?:, \w+)*)(?: \(.*?\))?: (.+)")
_MANY = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def options_of(registry: Registry[Any], name: str) -> type[Any]:
    """Of what `registry` has under this name."""
    given = registry.options(name)
    if given is not None:
        return given
    if registry is DATA_SOURCES:
        return _Nothing  # they are made with the whole section
    thing = registry.get(name)
    return _signature_options(thing, given_by_engine(registry, thing))


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
def _signature_options(thing: Any, by_engine: Sequence[str]) -> type[Any]:
    hints = type_hints(thing)
    fields = [
        (name, hints.get(name, Any) | None if required else hints.get(name, Any),
         dataclasses.field(default=None) if required else declare(each.default))
        for name, each in _parameters(thing).items()
        if name not in by_engine and each.kind not in _MANY
        for required in [each.default is each.empty]
    ]  # fmt: skip
    more = {"described_by": thing, "made_by": (_signature_options, (thing, by_engine))}
    name = str(getattr(thing, "__name__", thing))
    return dataclasses.make_dataclass(name, fields, bases=(_OfSignature,), namespace=more)


def is_of_signature(options: type[Any]) -> bool:
    return issubclass(options, _OfSignature)


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


# ---- what the keys mean


@cache
def meanings(cls: type[Any]) -> dict[str, str]:
    """Return the comments of a dataclass's fields, also of its bases'; some have none."""
    found: dict[str, str] = {}
    of_arguments: dict[str, dict[str, str]] = {}
    for each in reversed(cls.__mro__):
        if "described_by" in vars(each):
            for key, text in argument_meanings(vars(each)["described_by"]):
                of_arguments.setdefault(key, {}).setdefault(text, each.__name__)
        elif "__dataclass_fields__" in vars(each):
            found.update(_comments(each))
    for key, texts in of_arguments.items():
        several = len(texts) > 1
        found[key] = " ".join(f"{its}: {text}" if several else text for text, its in texts.items())
    return found


def argument_meanings(thing: Any) -> Iterator[tuple[str, str]]:
    """(argument, meaning) of what a function or a class says of its arguments."""
    docs = [thing.__doc__]
    if isinstance(thing, type):
        docs.append(thing.__init__.__doc__)  # type: ignore[misc]
    names, words = [""], list[str]()
    for line in "\n\n".join(inspect.cleandoc(each or "") for each in docs).splitlines():
        begin = _ARGUMENT.match(line)
        if begin or not line.strip():
            yield from ((name, " ".join(words)) for name in names if name)
            names, words = (begin[1].split(", "), [begin[2]]) if begin else ([""], [])
        else:
            words.append(line.strip())
    yield from ((name, " ".join(words)) for name in names if name)


def meaning_of_section(cls: type[Any]) -> str:
    """Return the docstring; "" for the signature that dataclasses without docstring get."""
    text = inspect.cleandoc(cls.__doc__ or "")
    return "" if text.startswith(f"{cls.__name__}(") else " ".join(text.split())


def _comments(cls: type[Any]) -> Iterator[tuple[str, str]]:
    try:
        source = textwrap.dedent(inspect.getsource(cls))
    except (OSError, TypeError):
        return  # defined without a file, as in a notebook
    lines, (tree, *_) = source.splitlines(), ast.parse(source).body
    assert isinstance(tree, ast.ClassDef)
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            words = _above(lines, node.lineno - 1)
            if words:
                yield node.target.id, " ".join(words)


def _above(lines: list[str], at: int) -> list[str]:
    first = at
    while lines[first - 1].lstrip().startswith("#"):
        first -= 1
    return [line.strip().lstrip("#").strip() for line in lines[first:at]]
