"""A user's plugins, sections and settings in a config that is resolved."""

from __future__ import annotations

import pickle
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from omegaconf.errors import ReadonlyConfigError

from sslengine import catalog  # noqa: F401
from sslengine.config import sections
from sslengine.config.options import RunOptions
from sslengine.config.resolve import changed, resolve
from sslengine.config.sections import (
    read,
    schema,
    section,
)
from sslengine.errors import ConfigError
from tests.config.recipes import resolved

PLUGIN = """
from dataclasses import dataclass
from torch import nn
from sslengine.config.sections import section
from sslengine.registry import register_loss

@dataclass
class TwiceOptions:
    factor: float = 2.0

@section("TWICE_EXTRA")
@dataclass
class Extra:
    depth: int = 3

@register_loss("twice_loss", options=TwiceOptions)
class TwiceLoss(nn.Module):
    def __init__(self, options, run):
        super().__init__()
"""

YAML = """
PLUGINS: [my_twice_plugin]
TEST_MODEL: False
DATA: {TRAIN: {DATA_SOURCES: [synthetic]}}
LOSS: {name: twice_loss}
TWICE_EXTRA: {depth: 5}
MACHINE: {DEVICE: cpu}
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder, with a plugin and a YAML that uses it."""
    (tmp_path / "my_twice_plugin.py").write_text(PLUGIN)
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "mine.yaml").write_text(YAML)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    # Its section is for this test alone: it is imported again each time.
    monkeypatch.setattr(sections, "_SECTIONS", dict(sections._SECTIONS))
    monkeypatch.delitem(sys.modules, "my_twice_plugin", raising=False)
    return tmp_path


def test_plugins_bring_names_options_and_sections(project: Path) -> None:
    run = resolve(["config=mine", "config.LOSS.twice_loss.factor=4"])
    assert run.config.LOSS.twice_loss.factor == 4.0
    assert run.config.TWICE_EXTRA.depth == 5
    with pytest.raises(ConfigError, match="Did you mean 'factor'"):
        resolve(["config=mine", "config.LOSS.twice_loss.factr=4"])
    with pytest.raises(ConfigError, match="TWICE_EXTRA.depth: expected int"):
        resolve(["config=mine", "config.TWICE_EXTRA.depth=deep"])


@pytest.mark.parametrize("value", ["one", "[1]"])
def test_plugins_are_a_list_of_modules(project: Path, value: str) -> None:
    with pytest.raises(ConfigError, match="config.PLUGINS: expected a list of modules"):
        resolve(["config=mine", f"config.PLUGINS={value}"])


def test_the_root_keys_and_the_name(project: Path) -> None:
    run = resolve(["config=mine", "engine_name=extract_features", "node_id=1"])
    assert (run.engine_name, run.node_id, run.name) == ("extract_features", 1, "mine")


def test_the_result_is_read_only_and_stays_so_through_pickling() -> None:
    run = pickle.loads(pickle.dumps(resolved()))
    with pytest.raises(ReadonlyConfigError):
        run.config.SEED_VALUE = 1
    with pytest.raises(ReadonlyConfigError):
        run.config.DATA.TRAIN.TRANSFORMS.append({})
    assert run.config["METERS"]["enable_training_meter"] is True


def test_another_loss_comes_without_the_options_of_one_from_outside() -> None:
    run = resolved(LOSS={"name": "torch.nn:MultiMarginLoss", "MultiMarginLoss": {"margin": 2.0}})
    config = changed(run, {"LOSS.name": "CrossEntropyLoss"}, "train").config
    assert set(config.LOSS) == {"name", "CrossEntropyLoss"}


# ---- sections


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
