"""Arguments of components, and the values and objects of Python that configs hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Literal, Optional, Union

import numpy as np
import pytest
import torch
from omegaconf import MISSING, OmegaConf
from omegaconf.errors import InterpolationKeyError, MissingMandatoryValue

from sslengine.config.arguments import argument_problems
from sslengine.config.assignments import overrides
from sslengine.config.compose import compose, sweep
from sslengine.config.objects import object_of_own_keys, to_object
from sslengine.config.options import RunOptions
from sslengine.config.resolve import resolve
from tests.integration.test_configs import QUICK
from tests.teachers import needed


class Head:
    def __init__(
        self,
        dims: Sequence[int],
        use_bn: bool = False,
        scale: float = 1.0,
        kind: Literal["a", "b"] = "a",
        name: str | None = None,
        extra: Mapping[str, Any] | None = None,
        anything: Any = None,
    ) -> None: ...


def _problems(**arguments: Any) -> list[str]:
    return argument_problems(Head, arguments, "config.HEAD.0")


@pytest.mark.parametrize(
    "arguments",
    [
        {"dims": [1, 2]},
        {"dims": (1,), "use_bn": True, "scale": 3, "kind": "b", "name": "x", "extra": {"a": 1}},
        {"dims": [], "name": None, "anything": object()},
    ],
)
def test_what_fits(arguments: dict[str, Any]) -> None:
    assert _problems(**arguments) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dims": [1], "use_nb": True}, "HEAD.0.use_nb: Head takes no such argument. Did you mean"),
        ({"dims": [1], "zzz": 1}, "It takes: anything, dims"),
        ({}, "config.HEAD.0.dims: Head requires this argument"),
        ({"dims": "128"}, "config.HEAD.0.dims: expected a list of int, got '128'"),
        ({"dims": [1, "x"]}, "config.HEAD.0.dims: expected"),
        ({"dims": [1], "use_bn": "yes"}, "expected bool, got 'yes'"),
        ({"dims": [1], "use_bn": 1}, "expected bool, got 1"),
        ({"dims": [1], "scale": True}, "expected float, got True"),
        ({"dims": [1], "kind": "c"}, "expected typing.Literal"),
        ({"dims": [1], "extra": [1]}, "config.HEAD.0.extra: expected"),
    ],
)  # fmt: skip
def test_what_does_not(arguments: dict[str, Any], message: str) -> None:
    (problem,) = _problems(**arguments)
    assert message in problem


def test_arguments_of_the_engine_are_not_the_users() -> None:
    def collate(batch: list[Any], padding: int = 0) -> None: ...

    assert argument_problems(collate, {"padding": 1}, "w", ("batch",)) == []
    (problem,) = argument_problems(collate, {"batch": 1}, "w", ("batch",))
    assert "takes no such argument" in problem


def test_open_arguments_take_anything() -> None:
    def free(**kwargs: Any) -> None: ...

    assert argument_problems(free, {"whatever": 1}, "w") == []


def test_a_thing_without_a_signature_is_left_to_its_call() -> None:
    assert argument_problems(type("C", (), {"__signature__": "odd"}), {"x": 1}, "w") == []


# ---- Sections as objects: the same as OmegaConf makes.


@dataclass
class Inner:
    size: Union[bool, float] = 0.5  # noqa: UP007 - OmegaConf's own form
    names: list[str] = field(default_factory=lambda: ["a"])


@dataclass
class Outer:
    one: Inner = field(default_factory=Inner)
    many: dict[str, Inner] = field(default_factory=lambda: {"x": Inner(True)})
    none: Optional[Inner] = None  # noqa: UP045
    late: int = field(default=3, init=False)
    free: Any = field(default_factory=lambda: {"a": [1, {"b": None}]})


@pytest.mark.parametrize("name", QUICK)
def test_of_a_recipe(name: str) -> None:
    config = resolve([f"config=quickstart/{name}", *needed(name)]).config
    assert to_object(config) == OmegaConf.to_object(config)
    of_run: Any = OmegaConf.to_object(config)
    own = object_of_own_keys(config, RunOptions)
    assert type(own) is RunOptions
    assert all(getattr(of_run, key) == value for key, value in vars(own).items())


def test_of_every_kind_of_value() -> None:
    node = OmegaConf.structured(Outer)
    OmegaConf.set_struct(node, False)
    node.late, node.added = 4, {"c": (1, 2)}
    made, expected = to_object(node), OmegaConf.to_object(node)
    assert made == expected
    assert vars(made) == vars(expected)
    assert made.added == {"c": [1, 2]}
    assert made.many["x"].size is True


def test_what_refers_to_another_value_is_what_that_is() -> None:
    node = OmegaConf.structured(Outer)
    node.one.size = "${late}"
    assert to_object(node).one.size == 3
    node.one.size = "${nowhere}"
    with pytest.raises(InterpolationKeyError, match="nowhere"):
        to_object(node)


def test_a_missing_value_is_an_error() -> None:
    node = OmegaConf.structured(Outer)
    node.one.size = MISSING
    with pytest.raises(MissingMandatoryValue, match="size"):
        to_object(node)


# ---- assignments


VALUES: dict[str, tuple[Any, Any]] = {
    "a path with a comma": (Path("/tmp/x/c, d"), "/tmp/x/c, d"),
    "a path": (PurePosixPath("runs/mine"), "runs/mine"),
    "paths": ([Path("/a b"), "c,d"], ["/a b", "c,d"]),
    "an int of numpy": (np.int64(3), 3),
    "a float of numpy": (np.float32(0.5), 0.5),
    "a truth of numpy": (np.bool_(True), True),
    "a text of numpy": (np.str_("a, b"), "a, b"),
    "an array": (np.array([1, 2]), [1, 2]),
    "a tensor": (torch.tensor(2), 2),
    "in a dict": ({"a": np.int64(1), "b": Path("c, d")}, {"a": 1, "b": "c, d"}),
}


@pytest.mark.parametrize("kind", VALUES)
def test_a_value_of_python_is_one_value_of_the_config(kind: str) -> None:
    given, expected = VALUES[kind]
    (words,) = sweep(["config=quickstart/simclr", *overrides({"CHECKPOINT.DIR": given})])
    found = compose(words).last_value("config.CHECKPOINT.DIR")
    assert found == expected
    assert type(found) is type(expected)
