"""Check the arguments of a call `thing(**arguments)` before anything is built.

Components such as transforms, heads and hooks have no options dataclass: the
signature of the class is their schema.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sslengine.config.components import type_hints
from sslengine.errors import listing, nearest


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


def argument_problems(
    thing: Any, arguments: Mapping[str, Any], where: str, given_by_engine: Sequence[str] = ()
) -> list[str]:
    """Return the problems of the arguments; `given_by_engine` are those that YAML cannot set."""
    try:
        parameters = dict(inspect.signature(thing).parameters)
    except (TypeError, ValueError):
        return []  # a C function without a signature: only the call can fail
    kinds = {parameter.kind for parameter in parameters.values()}
    for name in given_by_engine:
        parameters.pop(name, None)
    parameters = {
        name: parameter
        for name, parameter in parameters.items()
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    }
    problems = []
    if inspect.Parameter.VAR_KEYWORD not in kinds:
        for name in arguments:
            if name not in parameters:
                hint = nearest(name, parameters) or f"It takes: {listing(parameters) or 'nothing'}."
                problems.append(f"{where}.{name}: {_name(thing)} takes no such argument. {hint}")
    for name, parameter in parameters.items():
        if parameter.default is parameter.empty and name not in arguments:
            problems.append(f"{where}.{name}: {_name(thing)} requires this argument.")
    known = {name: value for name, value in arguments.items() if name in parameters}
    return problems + _type_problems(thing, known, where)


def _type_problems(thing: Any, arguments: Mapping[str, Any], where: str) -> list[str]:
    if not arguments:
        return []
    hints = type_hints(thing)
    return [
        f"{where}.{name}: expected {_describe(hints[name])}, got {value!r}."
        for name, value in arguments.items()
        if name in hints and not _fits(value, hints[name])
    ]


def _fits(value: Any, hint: Any) -> bool:
    """Whether the value may have the type; False only for simple types that clearly differ."""
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
