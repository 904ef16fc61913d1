from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import pytest

from sslengine.config.components import argument_problems


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
