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
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from sslengine.config.ranges import declare, fields
from sslengine.errors import listing, nearest
from sslengine.registry import DATA_SOURCES, Registry

_ARGUMENT = re.compile(r"\s*(\w+(?:, \w+)*)(?: \(.*?\))?: (.+)")
_MANY = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def options_of(registry: Registry[Any], name: str) -> type[Any]:
    """Return the options of what `registry` has under this name."""
    given = registry.options(name)
    if given is not None:
        return given
    if registry is DATA_SOURCES:
        return _Nothing  # they are made with the whole section
    thing = registry.get(name)
    return _signature_options(thing, given_by_engine(registry, thing))


def given_by_engine(registry: Registry[Any], thing: Any) -> tuple[str, ...]:
    """Return the arguments that YAML may not set: some are passed first, under any name."""
    first = list(_parameters(thing))[:1] if registry.takes_first else []
    return (*registry.engine_arguments, *first)


def belongs_to(registry: Registry[Any], key: str, owners: Sequence[str]) -> str:
    return f"is a key of the {registry.kind}{'s' * (len(owners) > 1)} {listing(owners)}"


def owners_of(registry: Registry[Any], key: str) -> list[str]:
    """Return the components that have such a key, of those for which nothing has to be imported."""
    return [name for name in registry.open_names() if key in keys_of(registry, [name])]


def keys_of(registry: Registry[Any], names: Sequence[str] | None = None) -> set[str]:
    """Return the keys of these components; None: of all for which nothing has to be imported."""
    known = registry.open_names() if names is None else names
    return {key for name in known for key in fields(options_of(registry, name))}


class Entry(NamedTuple):
    """A component that the value of a field made with `named` names."""

    path: str
    name: str  # "": an entry without one
    arguments: Mapping[str, Any] | None  # None: a name alone
    arguments_at: str = ""  # their key path


def named_entries(registry: Registry[Any], value: Any, path: str = "") -> Iterator[Entry]:
    """Yield the entries of a value: `name`, `{name: ..., its arguments}`, `[name, {...}]`."""
    match value:
        case str() if value:
            yield Entry(path, value, None)
        case Mapping():
            name = registry.name_in(value, path) if "name" in value else ""
            arguments = {str(k): each for k, each in value.items() if k not in registry.entry_keys}
            yield Entry(path, name, arguments, path)
        case [str(name), Mapping() as arguments, *_] if "name" not in arguments:
            yield Entry(path, name, arguments, f"{path}.1")
        case [*entries]:
            for index, each in enumerate(entries):
                yield from named_entries(registry, each, f"{path}.{index}")


class Generated(type):
    """Of dataclasses that are made while the program runs: pickled by the call that makes them."""


def _reduced(cls: type[Any]) -> Any:
    """Pickle a class that is written in a file by its name."""
    return vars(cls).get("made_by", cls.__qualname__)


copyreg.pickle(Generated, _reduced)  # type: ignore[arg-type]


class _OfSignature(metaclass=Generated):
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
    bases = (_OfSignature,)
    return dataclasses.make_dataclass(_name(thing), fields, bases=bases, namespace=more)


def is_of_signature(options: type[Any]) -> bool:
    return issubclass(options, _OfSignature)


def _parameters(thing: Any) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(thing).parameters
    except (TypeError, ValueError):
        return {}  # a C function without a signature


def type_hints(thing: Any) -> dict[str, Any]:
    """Return the types of its arguments, where they can be read."""
    function: Callable[..., Any] = thing.__init__ if isinstance(thing, type) else thing  # type: ignore[misc]
    try:
        return typing.get_type_hints(function)
    except (NameError, TypeError, AttributeError):
        return {}


# ---- the arguments of a call, checked before anything is built


def loss_arguments(thing: Any, given: Collection[str]) -> list[str]:
    """Return the arguments that training passes to a function that is a loss.

    They are two or three positional arguments without default that YAML does not set. A function
    with another number of such arguments creates a loss; the result is then empty.
    """
    if not inspect.isfunction(thing):
        return []
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    left = [
        name
        for name, each in inspect.signature(thing).parameters.items()
        if each.kind in positional and each.default is each.empty and name not in given
    ]
    return left if len(left) in (2, 3) else []


def owns_network(thing: Any) -> bool:
    """Tell whether a component is a class that takes the trunk itself: it has its own heads."""
    return isinstance(thing, type) and "trunk" in _parameters(thing)


def argument_problems(
    thing: Any, arguments: Mapping[str, Any], where: str, given_by_engine: Sequence[str] = ()
) -> list[str]:
    """Return the problems of the arguments; `given_by_engine` are those that YAML cannot set."""
    try:
        signature = inspect.signature(thing).parameters
    except (TypeError, ValueError):
        return []  # a C function without a signature: only the call can fail
    parameters = {
        name: each
        for name, each in signature.items()
        if name not in given_by_engine and each.kind not in _MANY
    }
    hints, problems = type_hints(thing) if arguments else {}, []
    takes_any = any(each.kind is each.VAR_KEYWORD for each in signature.values())
    for name, value in arguments.items():
        if name not in parameters and not takes_any:
            hint = nearest(name, parameters) or f"It takes: {listing(parameters) or 'nothing'}."
            problems.append(f"{where}.{name}: {_name(thing)} takes no such argument. {hint}")
        elif name in parameters and name in hints and not _fits(value, hints[name]):
            expected = _describe(hints[name])
            problems.append(f"{where}.{name}: expected {expected}, got {value!r}.")
    for name, each in parameters.items():
        if each.default is each.empty and name not in arguments:
            problems.append(f"{where}.{name}: {_name(thing)} requires this argument.")
    return problems


def _fits(value: Any, hint: Any) -> bool:
    """Tell whether the value may have the type; False only for simple types that clearly differ."""
    origin = typing.get_origin(hint)
    if hint is Any or isinstance(hint, typing.TypeVar):
        return True
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, each) for each in typing.get_args(hint))
    if origin is typing.Literal:
        return value in typing.get_args(hint)
    if hint is type(None):
        return value is None
    if hint is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if hint in (bool, str):
        return isinstance(value, hint)
    if isinstance(origin, type) and issubclass(origin, (Sequence, tuple)):
        if isinstance(value, str) or not isinstance(value, Sequence):
            return False
        element = typing.get_args(hint)[:1]
        return not element or all(_fits(each, element[0]) for each in value)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return isinstance(value, Mapping)
    return True


def _describe(hint: Any) -> str:
    if typing.get_origin(hint) in (list, Sequence):
        return " of ".join(("a list", *map(_describe, typing.get_args(hint))))
    return hint.__name__ if isinstance(hint, type) and not typing.get_args(hint) else str(hint)


def _name(thing: Any) -> str:
    return str(getattr(thing, "__name__", thing))


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
    """Yield (argument, meaning) of what a function or a class says of its arguments."""
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
