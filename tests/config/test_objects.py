"""Sections as objects: the same as OmegaConf makes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Optional, Union

import pytest
from omegaconf import MISSING, OmegaConf
from omegaconf.errors import InterpolationKeyError, MissingMandatoryValue

from sslengine.config.objects import object_of_own_keys, to_object
from sslengine.config.options import RunOptions
from sslengine.config.resolve import resolve
from tests.integration.test_configs import QUICK
from tests.teachers import needed


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
