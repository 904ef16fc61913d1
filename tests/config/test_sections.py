from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from omegaconf import OmegaConf
from omegaconf.errors import ReadonlyConfigError

from sslengine import catalog  # noqa: F401
from sslengine.config import sections
from sslengine.config.options import RunOptions
from sslengine.config.sections import (
    element_type,
    named,
    read,
    schema,
    section,
    typed_nodes,
)
from sslengine.errors import ConfigError
from sslengine.registry import Registry
from tests.config.recipes import resolved


@pytest.fixture(autouse=True)
def _forget_new_sections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sections, "_SECTIONS", dict(sections._SECTIONS))


@dataclass
class Mine:
    speed: float = 1.0
    names: list[str] = field(default_factory=lambda: ["a"])


def test_a_section_appears_in_the_schema_at_any_depth() -> None:
    section("MINE")(Mine)
    section("MODEL.TRUNK.MINE")(Mine)
    tree = schema()
    assert tree.MINE.speed == tree.MODEL.TRUNK.MINE.speed == 1.0
    assert OmegaConf.get_type(tree.MODEL.TRUNK.MINE) is Mine


def test_two_classes_cannot_have_one_place() -> None:
    with pytest.raises(ConfigError, match="config.OPTIMIZER is declared by"):
        section("OPTIMIZER")(Mine)


def test_reading_gives_a_typed_copy() -> None:
    config = resolved(SEED_VALUE=3).config
    run = read(config, RunOptions)
    assert isinstance(run, RunOptions)
    assert run.SEED_VALUE == 3
    run.SEED_VALUE = 4
    assert config.SEED_VALUE == 3
    with pytest.raises(ReadonlyConfigError):
        config.SEED_VALUE = 4


def test_a_named_field_has_its_registry_and_its_own_default() -> None:
    registry: Registry[Any] = Registry("thing")

    @dataclass
    class Options:
        one: str = named(registry, "x")
        several: list[Any] = named(registry, ["y"])

    first, second = Options(), Options()
    first.several.append("z")
    assert (second.one, second.several) == ("x", ["y"])
    assert Options.__dataclass_fields__["one"].metadata["registry"] is registry


@dataclass
class _Named:
    a: int = 1


@dataclass
class _Holder:
    things: dict[str, _Named] = field(default_factory=dict)


def test_sections_under_names_of_the_users_own() -> None:
    node: Any = OmegaConf.structured(_Holder(things={"one": _Named(), "two": _Named(a=2)}))
    assert element_type(node.things) is _Named
    assert element_type(node.things.one) is None
    assert [path for path, _ in typed_nodes(node, "x")] == ["x", "x.things.one", "x.things.two"]


def test_typed_nodes_have_their_key_paths() -> None:
    paths = [path for path, _ in typed_nodes(schema())]
    assert paths[0] == "config"
    assert "config.DATA.TRAIN.DATA_LIMIT_SAMPLING" in paths
