"""The YAML that ships: each file says only what differs from the files that it is based on."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from sslengine.config.compose import compose, shipped_configs
from sslengine.config.resolve import resolve
from sslengine.config.show import show
from sslengine.dotted import leaves

CONFIGS = shipped_configs()
MEASURED = json.loads((CONFIGS.parent / "docs" / "methods.json").read_text("utf-8"))
RUNS = sorted(
    path.relative_to(CONFIGS).with_suffix("").as_posix()
    for folder in ("quickstart", "pretrain", "photos", "small")
    for path in (CONFIGS / folder).rglob("*.yaml")
)


def _layers(name: str) -> dict[str, dict[str, Any]]:
    """What each file of a run says, by its name, the run's own last."""
    layers = compose([f"config={name}"], [str(CONFIGS)]).layers
    return {
        Path(each.origin).resolve().relative_to(CONFIGS).with_suffix("").as_posix(): dict(
            leaves(each.tree)
        )
        for each in layers
    }


@pytest.mark.parametrize("name", RUNS)
def test_no_file_repeats_its_bases(name: str) -> None:
    said: dict[str, Any] = {}
    for file, values in _layers(name).items():
        again = {key for key, value in values.items() if key in said and said[key] == value}
        assert not again, file
        said.update(values)


def test_every_base_is_the_base_of_a_run() -> None:
    used = set().union(*map(_layers, RUNS))
    assert len(RUNS) > 30
    assert {
        path.relative_to(CONFIGS).with_suffix("").as_posix()
        for path in (CONFIGS / "base").rglob("*.yaml")
    } == {name for name in used if name.startswith("base/")}


def test_each_value_is_shown_with_the_file_that_says_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(CONFIGS.parent)
    lines = show(resolve(["config=quickstart/npid++"])).splitlines()
    of = {key: file for key, file in (_key_and_file(line) for line in lines) if file}
    assert of["num_negatives"] == "configs/quickstart/npid++.yaml"
    assert of["embedding_dim"] == "configs/quickstart/npid.yaml"
    assert of["COLLATE_FUNCTION"] == "configs/base/views/shapes/single.yaml"
    assert of["DATA_LIMIT"] == "configs/base/data/shapes.yaml"
    assert of["num_epochs"] == "configs/base/optimization/adamw.yaml"


def _key_and_file(line: str) -> tuple[str, str]:
    text, _, origin = line.partition("  # ")
    return text.split(":")[0].strip(), origin


def test_a_run_of_the_users_stands_on_any_of_them(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(
        "# @package _global_\n"
        "defaults: [/config/pretrain/byol/byol_8node_resnet50, /config/base/views/swav, "
        "/config/base/machine/cpu, _self_]\n"
        "config: {LOSS: {name: swav_loss}}\n"
    )
    said = compose(["config=mine"], [str(tmp_path)]).said()["config"]
    assert said["DATA"]["TRAIN"]["COLLATE_FUNCTION"] == "multicrop_collator"
    assert said["MACHINE"]["DEVICE"] == "cpu"
    assert said["OPTIMIZER"]["name"] == "lars"
    assert said["LOSS"] == {"name": "swav_loss", "byol_loss": {"momentum": 0.996}}


def _head(name: str) -> str:
    lines = (CONFIGS / f"{name}.yaml").read_text("utf-8").split("defaults:")[0].splitlines()
    return " ".join(" ".join(line.lstrip("#").strip() for line in lines).split())


@pytest.mark.parametrize("name", [each for each in RUNS if each.startswith("quickstart/")])
def test_a_quickstart_says_what_it_needs(name: str) -> None:
    """As measured, where it was: docs/methods.json."""
    said = (compose([f"config={name}"]).last_value(f"config.{key}") for key in
            ("DATA.TRAIN.DATA_LIMIT", "DATA.TRAIN.BATCHSIZE_PER_REPLICA", "OPTIMIZER.num_epochs"))  # fmt: skip
    images, batch, epochs = said
    steps = epochs * (images // batch)
    cost = MEASURED[name.removeprefix("quickstart/")]["cost"]
    if cost is None:
        wanted = rf"Needs \(estimates\): [\d.]+ minutes of two CPU cores \({steps:,} steps\) and [\d.]+ GiB"
    else:
        wanted = (
            rf"Needs: {steps * cost['step_ms'] / 60_000:.1f} minutes of two CPU cores \({steps:,} "
            rf"steps of {cost['step_ms']:.0f} ms\) and {cost['memory_mib'] / 1024:.1f} GiB of memory"
        )
    assert re.search(rf"{wanted}.* {images:,} images", _head(name))
