"""Declared ranges: each is kept where a section is read, and shown in the schema for editors."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from sslengine import catalog  # noqa: F401 - declares what ships with sslengine
from sslengine.checkpoint.options import BestOptions, CheckpointOptions
from sslengine.config.ranges import (
    ValueRange,
    above,
    at_least,
    choice,
    choices,
    declared_ranges,
    range_problems,
    share,
)
from sslengine.config.sections import iterations, section_problems
from sslengine.errors import ConfigError
from sslengine.hooks.options import EarlyStoppingOptions, OnlineEvalOptions, PreciseBnOptions
from sslengine.optim.options import LayerWiseLrDecay, MultiplierOptions, OptimizerOptions
from sslengine.optim.schedules import AutoLrScaling, SchedulerOptions
from sslengine.registry import LOSSES, MODELS
from tests.config.recipes import resolved
from tools.config_schema import _section

SECTIONS = (
    BestOptions, CheckpointOptions, EarlyStoppingOptions, OnlineEvalOptions, PreciseBnOptions,
    LayerWiseLrDecay, OptimizerOptions, AutoLrScaling, SchedulerOptions,
)  # fmt: skip


def options_with_ranges() -> Iterator[type[Any]]:
    """Yield those of all losses and models of ours, of some sections, and what is inside them."""
    given = [each.options(name) for each in (LOSSES, MODELS) for name in each.names()]
    found = list(filter(None, (*given, *SECTIONS)))
    for cls in found:
        inside = (each.default_factory for each in dataclasses.fields(cls))
        found += [each for each in inside if dataclasses.is_dataclass(each) and each not in found]
    return (each for each in dict.fromkeys(found) if declared_ranges(each))


def outside(allowed: ValueRange) -> Iterator[Any]:
    if not allowed.bounded:
        yield "none of them"
        return
    yield from (math.nan, -math.inf)
    yield allowed.low if allowed.low_is_out else allowed.low - 1
    if allowed.high < math.inf:
        yield allowed.high if allowed.high_is_out else allowed.high + 1
    else:
        yield math.inf


@pytest.mark.parametrize("cls", list(options_with_ranges()), ids=lambda cls: cls.__name__)
def test_defaults_are_in_their_ranges_and_what_is_outside_is_told(cls: type[Any]) -> None:
    options = cls()
    assert list(range_problems(options)) == []
    for key, allowed in declared_ranges(cls).items():
        kept = getattr(options, key)
        for value in outside(allowed):
            setattr(options, key, [value] if isinstance(kept, list) else value)
            (problem,) = section_problems(options)
            assert problem.startswith(f"{key}{'.0' * isinstance(kept, list)}: expected {allowed}")
        setattr(options, key, kept)


@dataclass
class Toy:
    positive: float = above(0, 0.5)
    open_share: float = above(0, 0.5, below=1)
    decay: float = above(0, 0.5, at_most=1)
    length: int | None = at_least(1, iterations(None))
    counts: list[int] = at_least(1, [2, 3])
    kept: int = at_least(1, -1, also=-1)
    part: float = share(0.5)
    form: str = choice("sum", "mean")
    sharded: bool | str = choice("auto", True, False)
    splits: list[str] = choices([], "TRAIN", "TEST")
    free: float = field(default=1.0)

    def check(self) -> Iterator[str]:
        yield f"free: {1 / self.positive}"


@pytest.mark.parametrize(
    ("key", "inside", "wrong", "told"),
    [
        ("positive", 1e-9, 0.0, "positive: expected a number above 0, got 0."),
        ("open_share", 0.99, 1.0, "open_share: expected a number above 0 and below 1, got 1."),
        ("decay", 1.0, 1.1, "decay: expected a number above 0 and at most 1, got 1.1."),
        ("length", 1, 0, "length: expected 1 or more, got 0."),
        ("counts", [1], [4, 0], "counts.1: expected 1 or more, got 0."),
        ("kept", 7, -5, "kept: expected 1 or more, or -1, got -5."),
        ("part", 0.0, math.nan, "part: expected a number from 0 to 1, got nan."),
        ("form", "mean", "men", "form: expected one of sum, mean, got 'men'. Did you mean 'mean'?"),
        ("sharded", False, "no", "sharded: expected one of auto, True, False, got 'no'."),
        ("splits", ["TEST"], ["VAL"], "splits.0: expected one of TRAIN, TEST, got 'VAL'."),
    ],
)
def test_a_value_inside_and_one_outside(key: str, inside: Any, wrong: Any, told: str) -> None:
    assert list(range_problems(Toy(**{key: inside}))) == []
    assert list(range_problems(Toy(**{key: wrong}))) == [told]


def test_all_values_out_of_range_are_told_at_once_and_before_rules_between_them() -> None:
    found = list(section_problems(Toy(positive=0.0, part=2.0)))
    assert [each.partition(":")[0] for each in found] == ["positive", "part"]
    assert list(section_problems(Toy())) == ["free: 2.0"]


def test_a_field_keeps_what_else_is_said_of_it() -> None:
    (length,) = (each for each in dataclasses.fields(Toy) if each.name == "length")
    assert length.metadata["iterations"]


def test_editors_are_shown_the_ranges() -> None:
    shown = _section(Toy)["properties"]
    assert shown["positive"]["exclusiveMinimum"] == 0
    assert (shown["part"]["minimum"], shown["part"]["maximum"]) == (0, 1)
    assert shown["counts"]["items"]["minimum"] == 1
    assert shown["kept"]["anyOf"][0] == {"enum": [-1]}
    assert shown["form"]["anyOf"][0] == {"enum": ["sum", "mean"]}
    assert shown["splits"]["items"]["anyOf"][0] == {"enum": ["TRAIN", "TEST"]}


def test_a_run_tells_the_key_path_of_each() -> None:
    changes = {"OPTIMIZER__momentum": 1.0, "CHECKPOINT__KEEP_LAST": -5}
    with pytest.raises(ConfigError) as told:
        resolved(**changes)
    paths = {line.partition(":")[0] for line in str(told.value).splitlines()}
    assert paths == {"config.OPTIMIZER.momentum", "config.CHECKPOINT.KEEP_LAST"}
    with pytest.raises(ConfigError, match=r"^config\.LOSS\.simclr_info_nce_loss\.temperature: "):
        resolved(LOSS__simclr_info_nce_loss={"temperature": 0.0})


def test_entries_of_a_list_have_them_too() -> None:
    assert [*range_problems(MultiplierOptions("a", lr=-1.0))] == ["lr: expected 0 or more, got -1."]
