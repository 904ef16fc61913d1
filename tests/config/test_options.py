"""Options: ranges, rules between them, and what losses need of a run."""

from __future__ import annotations

import dataclasses
import math
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from omegaconf import OmegaConf

from sslengine import catalog  # noqa: F401 - declares what ships with sslengine
from sslengine.config import sections
from sslengine.config.options import (
    ReproducibilityOptions,
    RunOptions,
)
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
from sslengine.config.requirements import expect_fitting_model
from sslengine.config.resolve import resolve
from sslengine.config.sections import epochs, section_problems
from sslengine.errors import ConfigError
from sslengine.registry import LOSSES, MODELS, Requirements, register_loss
from tests.config.recipes import resolved


def options_with_ranges() -> Iterator[type[Any]]:
    """Yield those of all sections, of all losses and models of ours, and what is inside them."""
    given = [each.options(name) for each in (LOSSES, MODELS) for name in each.names()]
    found = list(filter(None, (*given, *sections._SECTIONS.values())))
    for cls in found:
        inside = (each.default_factory for each in dataclasses.fields(cls))
        found += [each for each in inside if dataclasses.is_dataclass(each) and each not in found]
    return (each for each in dict.fromkeys(found) if declared_ranges(each))


def outside(allowed: ValueRange) -> Iterator[Any]:
    if not allowed.bounded:
        yield "none of them"
        return
    yield from (math.nan, -math.inf)
    below = allowed.low if allowed.low_is_out else allowed.low - 1
    yield from () if below in allowed else (below,)  # 0 may be, too
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
    length: int | None = at_least(1, epochs(None))
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
    assert length.metadata["epochs"]


def test_a_run_tells_the_key_path_of_each() -> None:
    changes = {"OPTIMIZER__momentum": 1.0, "CHECKPOINT__KEEP_LAST": -5}
    with pytest.raises(ConfigError) as told:
        resolved(**changes)
    paths = {line.partition(":")[0] for line in str(told.value).splitlines()}
    assert paths == {"config.OPTIMIZER.momentum", "config.CHECKPOINT.KEEP_LAST"}
    with pytest.raises(ConfigError, match=r"^config\.LOSS\.simclr_info_nce_loss\.temperature: "):
        resolved(LOSS__simclr_info_nce_loss={"temperature": 0.0})


# ---- options


BY_ITERATION = {"TEST_EVERY_NUM_ITERATIONS": 100}


@pytest.mark.parametrize(
    ("options", "keys"),
    [
        (ReproducibilityOptions(True, CUDNN_BENCHMARK=True), ["CUDNN_BENCHMARK"]),
        (RunOptions(EXPECTED_RESULTS=[["loss", 1.0, 0.1]]), ["EXPECTED_RESULTS.0"]),
        (RunOptions(**BY_ITERATION), []),
        (RunOptions(**BY_ITERATION, TEST_EVERY_NUM_EPOCH=2), ["TEST_EVERY_NUM_ITERATIONS"]),
        (RunOptions(**BY_ITERATION, TEST_MODEL=False), ["TEST_EVERY_NUM_ITERATIONS"]),
    ],
)  # fmt: skip
def test_the_keys_that_are_wrong(options: Any, keys: list[str]) -> None:
    assert [each.partition(":")[0] for each in section_problems(options)] == keys


def test_the_whole_schema_is_there_without_torch() -> None:
    """`--help` and a typo in a key must not wait for torch."""
    code = (
        "import sys; from sslengine import catalog; from sslengine.config.sections import schema; "
        "schema(); print(sorted({'torch', 'torchvision', 'classy_vision', 'timm', 'sklearn'} "
        "& set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# ---- What losses need of a run: each need is checked before the launch, with its key path.


TRAIN = "config.DATA.TRAIN"
ONE_VIEW = f"{TRAIN}.TRANSFORMS=[{{name: ToTensor}}]"
NO_HEAD = "config.MODEL.HEAD.PARAMS=[[mlp, {dims: [16, 8]}]]"
PLAIN = f"{TRAIN}.COLLATE_FUNCTION=default_collate"


@pytest.mark.parametrize(
    ("recipe", "change", "path"),
    [
        *(
            (name, ONE_VIEW, f"{TRAIN}.TRANSFORMS")
            for name in ("simclr", "moco", "byol", "simsiam", "barlow_twins", "vicreg", "dino",
                         "swav", "ibot", "dinov2", "dinov3", "msn")
        ),
        *(
            (name, PLAIN, f"{TRAIN}.COLLATE_FUNCTION")
            for name in ("dino", "swav", "deepclusterv2")
        ),
        *(
            (name, NO_HEAD, "config.MODEL.HEAD.PARAMS")
            for name in ("dino", "swav")
        ),
        *(
            (name, f"{TRAIN}.COLLATE_FUNCTION_PARAMS={{patch_size: 7}}",
             f"{TRAIN}.COLLATE_FUNCTION_PARAMS.patch_size")
            for name in ("capi", "ijepa", "msn")
        ),
        *(
            (name, f"{TRAIN}.BATCHSIZE_PER_REPLICA=1", f"{TRAIN}.BATCHSIZE_PER_REPLICA")
            for name in ("barlow_twins", "vicreg")
        ),
        *(
            (name, f"{TRAIN}.LABEL_TYPE=zero", f"{TRAIN}.LABEL_TYPE")
            for name in ("deepclusterv2", "npid")
        ),
        ("npid", "config.TEST_MODEL=true", "config.TEST_MODEL"),
        ("dino", "config.LOSS.dino_loss.crops_for_teacher=[0,9]",
         "config.LOSS.dino_loss.crops_for_teacher"),
        ("swav", "config.LOSS.swav_loss.crops_for_assign=[]",
         "config.LOSS.swav_loss.crops_for_assign"),
        ("deepclusterv2", "config.LOSS.deepclusterv2_loss.memory_params.crops_for_mb=[0,9]",
         "config.LOSS.deepclusterv2_loss.memory_params.crops_for_mb"),
    ],
)  # fmt: skip
def test_a_run_without_what_its_loss_needs(recipe: str, change: str, path: str) -> None:
    with pytest.raises(ConfigError) as told:
        resolve([f"config=quickstart/{recipe}", change])
    lines = str(told.value).splitlines()
    assert [line for line in lines if line.startswith(f"{path}: ") and "_loss" in line], lines


def test_all_that_is_missing_is_told_at_once() -> None:
    with pytest.raises(ConfigError) as told:
        resolve(["config=quickstart/dino", ONE_VIEW, PLAIN, NO_HEAD])
    assert len(str(told.value).splitlines()) >= 3


@register_loss("loss_of_requirements_test", trunk_input="shown", patch_size=16)
class Needy:
    pass


class Heir(Needy):
    pass


def test_a_subclass_needs_what_its_base_does() -> None:
    assert Heir.requires == Requirements(trunk_input="shown", patch_size=16)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("taken", "side", "path"),
    [
        ((), 16, "config.MODEL.TRUNK.NAME"),
        (("shown",), 14, f"{TRAIN}.COLLATE_FUNCTION_PARAMS.patch_size"),
        (("shown",), 16, ""),
    ],
)
def test_a_model_whose_trunk_does_not_fit(taken: tuple[str, ...], side: int, path: str) -> None:
    config: Any = OmegaConf.create(
        {"LOSS": {"name": "needy"}, "DATA": {"TRAIN": {"COLLATE_FUNCTION_PARAMS": {}}}}
    )
    model = SimpleNamespace(trunk=SimpleNamespace(extra_inputs=taken, patch_size=side))
    if not path:
        expect_fitting_model(config, Needy(), model)
        return
    with pytest.raises(ConfigError, match=rf"^{path}: needy needs"):
        expect_fitting_model(config, Needy(), model)
