"""configs/schema.json, as `make schema` writes it: does it take the YAML that is right?"""

from __future__ import annotations

import json
import operator
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf

from sslengine.config.compose import shipped_configs

ROOT = Path(__file__).resolve().parents[2]
VISSL = ROOT.parent / "shared" / "vissl-configs" / "config"
_IS = {
    "object": lambda value: isinstance(value, dict), "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool), "null": lambda value: value is None,
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, (int, float)) and not isinstance(value, bool),
}  # fmt: skip
_BOUNDS = {
    "minimum": operator.ge, "maximum": operator.le, "exclusiveMinimum": operator.gt,
    "exclusiveMaximum": operator.lt,
}  # fmt: skip
# What validators do with these is nothing.
_TELLING = {"description", "default", "deprecated", "title", "$schema"}


def problems(value: Any, schema: dict[str, Any], path: str = "") -> Iterator[str]:
    """As a validator of draft 7 finds them, for the words that the schema uses."""
    words = {"type", "enum", "pattern", "anyOf", "properties", "additionalProperties", "items",
             "allOf", "if", "then", "required", *_BOUNDS}  # fmt: skip
    assert schema.keys() <= words | _TELLING, path
    if _IS["number"](value):
        for each in _BOUNDS.keys() & schema.keys():
            if not _BOUNDS[each](value, schema[each]):
                yield f"{path}: {value!r} is beyond {each} {schema[each]}"
    types = schema.get("type", [])
    if types and not any(
        _IS[each](value) for each in ([types] if isinstance(types, str) else types)
    ):
        yield f"{path}: {value!r} is not of {types}"
    same = [each for each in schema.get("enum", []) if value == each]  # 1 is 1.0, and not true
    if "enum" in schema and isinstance(value, bool) not in {isinstance(e, bool) for e in same}:
        yield f"{path}: {value!r} is none of {schema['enum']}"
    if isinstance(value, str) and not re.search(schema.get("pattern", ""), value):
        yield f"{path}: {value!r} is not as expected"
    if "anyOf" in schema and all(list(problems(value, e, path)) for e in schema["anyOf"]):
        yield f"{path}: {value!r} fits nothing"
    for each in schema.get("allOf", []):
        if not list(problems(value, each["if"], path)):
            yield from problems(value, each["then"], path)
    if isinstance(value, dict):
        if missing := set(schema.get("required", [])) - value.keys():
            yield f"{path}: {missing} missing"
        known, others = schema.get("properties", {}), schema.get("additionalProperties", {})
        for key, each in value.items():
            below = known.get(str(key), others)
            if below is False:
                yield f"{path}.{key}: unknown key"
            else:
                yield from problems(each, below, f"{path}.{key}")
    if isinstance(value, list):
        for index, each in enumerate(value):
            yield from problems(each, schema.get("items", {}), f"{path}.{index}")


@pytest.fixture(scope="module")
def schema(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Written by a process of its own: other tests declare components."""
    file = tmp_path_factory.mktemp("schema") / "schema.json"
    subprocess.run([sys.executable, "tools/config_schema.py", file], cwd=ROOT, check=True)
    written: dict[str, Any] = json.loads(file.read_text())
    return written


def found_in(path: Path, schema: dict[str, Any]) -> list[str]:
    return list(problems(OmegaConf.to_container(OmegaConf.load(path)), schema, path.stem))


def test_all_yaml_that_ships_is_right(schema: dict[str, Any]) -> None:
    files = sorted(shipped_configs().rglob("*.yaml"))
    assert len(files) > 60
    assert [each for path in files for each in found_in(path, schema)] == []


@pytest.mark.skipif(not VISSL.is_dir(), reason="VISSL's own YAML is not beside this checkout")
@pytest.mark.parametrize("folder", ["swav", "moco", "dino", "npid", "jigsaw", "supervised"])
def test_vissls_yaml_is_right(folder: str, schema: dict[str, Any]) -> None:
    files = sorted((VISSL / "pretrain" / folder).rglob("*.yaml"))
    assert files
    assert [each for path in files for each in found_in(path, schema)] == []


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("OPTIMIZER: {num_epoch: 3}", "config.OPTIMIZER.num_epoch: unknown key"),
        ("OPTIMIZER: {num_epochs: many}", "num_epochs: 'many' is not as expected"),
        ("OPTIMIZER: {weight_decay: 1e-4}", ""),
        ("OPTIMIZER: {momentum: 1}", "momentum: 1 is beyond exclusiveMaximum 1"),
        ("OPTIMIZER: {num_epochs: '${config.SEED_VALUE}'}", ""),
        ("OPTIMIZER: [sgd]", "config.OPTIMIZER: ['sgd'] is not of"),
        ("MACHINE: {DEVICE: tpu}", "config.MACHINE.DEVICE: 'tpu' fits nothing"),
        ("HEAD_SWEEP: {NORM: bach}", "config.HEAD_SWEEP.NORM: 'bach' fits nothing"),
        ("DATA: {TRAIN: {DATA_SOURCES: disk_folder}}", "DATA_SOURCES: 'disk_folder' is not"),
        ("DATA: {TRAIN: {TRANSFORMS: [{name: ToTensor}]}}", ""),
        ("LOSS: {name: my_package:MyLoss, MyLoss: {margin: 2}}", ""),
        ("LOSS: {simclr_info_nce_loss: {temprature: 1}}", "temprature: unknown key"),
        ("HOOKS: {EMA_MODEL: {DECAY: 0.9}}", ""),
        ("CHECKPOINT: {BACKEND: s3}", "CHECKPOINT.BACKEND: 's3' is none of"),
        ("MACHINE:", ""),
    ],
)
def test_what_an_editor_says(text: str, told: str, schema: dict[str, Any]) -> None:
    found = list(problems({"config": yaml.safe_load(text)}, schema))
    assert len(found) == bool(told), found
    assert all(told in each for each in found)


def test_keys_have_their_meaning_and_default(schema: dict[str, Any]) -> None:
    config = schema["properties"]["config"]["properties"]
    frequency = config["LOG_FREQUENCY"]
    assert frequency["description"].startswith("Train steps between two log lines;")
    assert frequency["default"] == 10
    assert config["DISTRIBUTED"]["properties"]["DISTR_ON"]["deprecated"]


def _without_meaning(schema: dict[str, Any], path: str) -> Iterator[str]:
    """Keys that are values. Sections say what they are by the keys in them."""
    for key, each in schema.get("properties", {}).items():
        free = set(each) <= {
            "type",
            "properties",
            "additionalProperties",
        }  # a plain loss's arguments
        if "properties" not in each and not free and "description" not in each:
            yield f"{path}.{key}"
        yield from _without_meaning(each, f"{path}.{key}")


def test_every_key_has_a_meaning(schema: dict[str, Any]) -> None:
    """The comment above its field, which `--show --all` and editors print."""
    assert list(_without_meaning(schema, "")) == []
