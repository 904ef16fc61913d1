"""Arguments of components, and values of Python that configs hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import numpy as np
import pytest
import torch

from sslengine.config.components import argument_problems
from sslengine.config.compose import compose, overrides, sweep


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
