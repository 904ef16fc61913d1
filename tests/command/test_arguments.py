"""Arguments are declared once: the command line and the functions of Python have the same."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import sslengine
from sslengine.command import embed, train
from sslengine.command.arguments import Argument, collect, make_parser


@pytest.mark.parametrize(
    ("function", "declared"),
    [(sslengine.train, train.ARGUMENTS), (sslengine.embed, embed.ARGUMENTS)],
)
def test_a_function_takes_the_arguments_of_its_verb(
    function: Callable[..., Any], declared: Sequence[Argument]
) -> None:
    required = inspect.Parameter.empty
    expected = {
        each.name: each.default if each.flag.startswith("-") else required
        for each in declared
        if each.python
    }
    found = {
        name: None if name == "values" else each.default
        for name, each in inspect.signature(function).parameters.items()
    }
    assert found == {name: None if name == "values" else each for name, each in expected.items()}


def test_a_call_is_read_as_the_command_line() -> None:
    words = ["photos", "--epochs=3", "--label-column=species", "--set=config.SEED_VALUE=4",
             "--plugin=mine", "--out=runs/a", "--pretrained"]  # fmt: skip
    call = {"data": Path("photos"), "epochs": 3, "label_column": "species", "out": Path("runs/a"),
            "values": {"SEED_VALUE": 4}, "plugins": ["mine"], "pretrained": True}  # fmt: skip
    assert collect(train.ARGUMENTS, call) == make_parser(train.__name__).parse_args(words)
