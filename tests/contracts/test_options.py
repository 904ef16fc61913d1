"""The options of every component that ships: each has a meaning, code that reads it, and an error
before launch that names it where it is misspelt or missing.

What reads the fields of dataclasses is in tests/test_option_readers.py.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

from sslengine import catalog, registry
from sslengine.config.components import argument_meanings, is_of_signature, meanings, options_of
from sslengine.config.merge import Merged
from sslengine.errors import ConfigError
from sslengine.models.options import TrunkOptions
from sslengine.registry import Registry
from tests.config.recipes import resolved

assert catalog
Given = dict[str, dict[str, Any]]


def sections(path: str, names: str = "") -> Callable[[Given], Given]:
    """Under a key of each component's name."""
    return lambda given: {
        **{f"{path}__{name}": arguments for name, arguments in given.items()},
        **({f"{path}__{names}": [*given]} if names else {}),
    }  # type: ignore[return-value]


def entries(path: str) -> Callable[[Given], Any]:
    return lambda given: {path: [{"name": name, **each} for name, each in given.items()]}


def beside(path: str) -> Callable[[Given], Any]:
    return lambda given: {
        f"{path}__{key}": value for each in given.values() for key, value in each.items()
    }


# How a config gives arguments to the components of each kind.
GIVEN: dict[str, Callable[[Given], Any]] = {
    "TRAIN_STEPS": sections("TRAINER"),
    "LOSSES": sections("LOSS"),
    "MODELS": sections("MODEL"),
    "TRUNKS": sections("MODEL__TRUNK"),
    "HEADS": lambda given: {"MODEL__HEAD__PARAMS": [list(each) for each in given.items()]},
    "HOOKS": entries("HOOKS__EXTRA"),
    "WRITERS": entries("HOOKS__WRITERS"),
    "METERS": sections("METERS", "names"),
    "SCHEDULERS": beside("OPTIMIZER__param_schedulers__lr"),
    "TRANSFORMS": entries("DATA__TRAIN__TRANSFORMS"),
    "COLLATORS": lambda given: {
        f"DATA__{split}__COLLATE_FUNCTION{key}": value
        for split, (name, arguments) in zip(("TRAIN", "TEST"), given.items(), strict=False)
        for key, value in (("", name), ("_PARAMS", arguments))
    },
    "DATA_SOURCES": beside("DATA__TRAIN"),
}
OF_TRUNKS: dict[str, type[Any]] = {
    str(key): OmegaConf.get_type(node)  # type: ignore[misc]
    for key, node in resolved().config.MODEL.TRUNK.items()
    if isinstance(node, DictConfig)
}
# Their arguments are the engine's alone.
WITHOUT = {"TASKS", "ENGINES", "HOOK_ADAPTERS", "PARAM_GROUPS", "LABEL_FREE",
           "OPTIMIZERS", "PROTOCOLS"}  # fmt: skip


def options_by_name(kind: str) -> Iterator[tuple[str, type[Any]]]:
    """Of those of sslengine; one name of those that have several. Trunks have VISSL's sections."""
    if kind == "TRUNKS":
        yield from OF_TRUNKS.items()
        return
    found: Registry[Any] = getattr(registry, kind)
    once = {id(found.get(name)): name for name in reversed(found.names())}
    for name in once.values():
        if found.get(name).__module__.startswith("sslengine."):
            yield name, options_of(found, name)


def test_no_kind_is_forgotten() -> None:
    known = {name for name, each in vars(registry).items() if isinstance(each, Registry)}
    assert known == GIVEN.keys() | WITHOUT
    trunks = {registry.TRUNKS.options(name) for name in registry.TRUNKS.names()}
    assert trunks <= {*OF_TRUNKS.values(), TrunkOptions, None}


@pytest.mark.parametrize("kind", GIVEN)
def test_every_option_has_a_meaning(kind: str) -> None:
    missing = [
        f"{name}.{field.name}"
        for name, options in options_by_name(kind)
        for field in dataclasses.fields(options)
        if not meanings(options).get(field.name)
    ]
    assert missing == []


def read_in(thing: Any) -> set[str]:
    """Names that the code of a function, or of a class's constructor, reads."""
    function: Any = thing.__init__ if isinstance(thing, type) else thing
    if function is object.__init__:
        return set()
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    return {
        each.id
        for each in ast.walk(tree)
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load)
    }


@pytest.mark.parametrize("kind", GIVEN)
def test_arguments_are_read_and_those_explained_exist(kind: str) -> None:
    for name, options in options_by_name(kind):
        if is_of_signature(options):
            thing, keys = options.described_by, {each.name for each in dataclasses.fields(options)}
            assert keys <= read_in(thing), name
            assert {key for key, _ in argument_meanings(thing)} <= keys, name


def required(options: type[Any]) -> set[str]:
    thing = options.described_by if is_of_signature(options) else options
    taken = inspect.signature(thing).parameters
    names = {each.name for each in dataclasses.fields(options)}
    return {name for name in names if taken[name].default is inspect.Parameter.empty}


def misspelt(options: type[Any]) -> tuple[str, str]:
    """(wrong, right)"""
    right = max((each.name for each in dataclasses.fields(options)), key=len)
    return f"{right[:-1]}_{right[-1]}", right


@pytest.mark.parametrize("kind", [each for each in GIVEN if each != "MODELS"])
def test_a_misspelt_or_missing_argument_is_an_error(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raise_all(merged: Merged) -> None:  # not the first twelve
        if merged.problems:
            raise ConfigError("\n".join(merged.problems))

    monkeypatch.setattr(Merged, "raise_problems", raise_all)
    tried = {name: its for name, its in options_by_name(kind) if dataclasses.fields(its)}
    if kind == "LOSSES":  # the arguments of a class are known once it is chosen
        tried = {name: its for name, its in tried.items() if not is_of_signature(its)}
    names = [*tried]
    size = 2 if kind == "COLLATORS" else len(names)
    for some in (names[at : at + size] for at in range(0, len(names), size)):
        wrong = {name: misspelt(tried[name]) for name in some}
        with pytest.raises(ConfigError) as told:
            resolved(**GIVEN[kind]({name: {bad: 1} for name, (bad, _) in wrong.items()}))
        for bad, right in wrong.values():
            lines = [line for line in str(told.value).splitlines() if f".{bad}: " in line]
            assert lines, bad
            assert all(f"Did you mean '{right}'" in line for line in lines), bad
        for name in some:
            assert tried[name](**dict.fromkeys(required(tried[name])))
            # Schedules are built only once all keys are known: tests/config/test_schedules.py.
            for key in required(tried[name]) if kind != "SCHEDULERS" else ():
                assert f".{key}: {tried[name].__name__} requires this" in str(told.value)
