from __future__ import annotations

from typing import Any

import pytest

from sslengine import catalog  # noqa: F401 - declares the names that ship with sslengine
from sslengine.config.compose import Assignment, Composition
from sslengine.config.files import Layer
from sslengine.config.resolve import Resolved, freeze, resolve_dict
from sslengine.errors import ConfigError


def decided(*files: dict[str, Any], command: dict[str, Any] | None = None) -> Resolved:
    layers = [Layer(f"{n}.yaml", {"config": {"OPTIMIZER": each}}) for n, each in enumerate(files)]
    arguments = [
        Assignment(f"config.OPTIMIZER.{key}", value, f"{key}={value}")
        for key, value in (command or {}).items()
    ]
    return freeze(Composition(layers, arguments, "test"))


def length(*files: dict[str, Any], command: dict[str, Any] | None = None) -> tuple[Any, Any]:
    optimizer = decided(*files, command=command).config.OPTIMIZER
    return optimizer.num_epochs, optimizer.num_iterations


EPOCHS, ITERATIONS = {"num_epochs": 7}, {"num_iterations": 100}


def test_one_of_them_and_the_default() -> None:
    assert length({}) == (90, None)
    assert length(EPOCHS) == (7, None)
    assert length(ITERATIONS) == (None, 100)


def test_the_later_place_counts() -> None:
    assert length(EPOCHS, ITERATIONS) == (None, 100)
    assert length(ITERATIONS, EPOCHS) == (7, None)
    assert length(EPOCHS, command=ITERATIONS) == (None, 100)
    assert length({"num_iterations": 5}, EPOCHS, command=ITERATIONS) == (None, 100)
    assert length(ITERATIONS, command=EPOCHS) == (7, None)


def test_why_is_told() -> None:
    origins = decided(EPOCHS, ITERATIONS).origins
    assert origins["config.OPTIMIZER.num_epochs"] == "derived: num_iterations is set"


def test_twice_in_one_place() -> None:
    with pytest.raises(ConfigError, match=r"given twice.*\(7\).*\(100\), by 0.yaml. Set one"):
        decided({**EPOCHS, **ITERATIONS})
    with pytest.raises(ConfigError, match="given twice.* by command line"):
        decided(command={**EPOCHS, **ITERATIONS})


def test_neither() -> None:
    with pytest.raises(ConfigError, match=r"OPTIMIZER.num_epochs: the run has no length"):
        decided({"num_epochs": None})


def test_what_show_prints_can_be_run_again() -> None:
    config = decided(EPOCHS, ITERATIONS).config
    again = resolve_dict(
        {"OPTIMIZER": {key: config.OPTIMIZER[key] for key in (*EPOCHS, *ITERATIONS)}}
    )
    assert again.config.OPTIMIZER.num_iterations == 100
