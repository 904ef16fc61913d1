from __future__ import annotations

import dataclasses

import pytest
import yaml
from omegaconf import OmegaConf

from sslengine.config.components import meanings
from sslengine.config.resolve import resolve_dict
from sslengine.config.sections import fields_of, schema, typed_nodes
from sslengine.config.show import show
from tests.config.recipes import recipe, resolved


def test_what_is_shown_is_yaml_that_gives_the_same_config() -> None:
    run = resolved(DISTRIBUTED__BACKEND="nccl")
    shown = yaml.safe_load(show(run))
    assert shown["engine_name"] == "train"
    assert resolve_dict(shown["config"]).config == run.config


def test_each_changed_value_has_its_origin_beside_it() -> None:
    lines = show(resolved(DISTRIBUTED__BACKEND="nccl", SEED_VALUE=3)).splitlines()

    def line(key: str) -> str:
        return next(each for each in lines if each.strip().startswith(f"{key}:"))

    assert line("SEED_VALUE").endswith("# the given dict")
    # Two other sections have a BACKEND.
    (backend,) = [each for each in lines if each.endswith("# derived: nccl requires GPUs")]
    assert backend.split("#")[0].strip() == "BACKEND: gloo"
    assert line("VERBOSE").strip() == "VERBOSE: false"


@pytest.mark.parametrize("value", [
    "/data/my photos/" + "a folder, with spaces/" * 9, "it's: a # 'long' text " * 9,
    "é\\t \"quoted\" \t " * 9, "  two  spaces  " * 9, "lines\nof\n\na text " * 9,
    # read as it is: not as a number, and not as true
    "1e3", "yes",
])  # fmt: skip
@pytest.mark.parametrize("every", [False, True])
def test_long_and_odd_texts_are_read_as_they_are(value: str, every: bool) -> None:
    values = {"CHECKPOINT__DIR": value, "DATA__TRAIN__DATA_PATHS": [value],
              "DATA__TRAIN__DATA_SOURCES": ["disk_folder"]}  # fmt: skip
    config = OmegaConf.create(show(resolved(**values), explained=every)).config
    assert value == config.CHECKPOINT.DIR
    assert list(config.DATA.TRAIN.DATA_PATHS) == [value]


def test_a_value_set_inside_a_list_is_told_at_the_list() -> None:
    from sslengine.config.compose import Assignment, Composition
    from sslengine.config.files import Layer
    from sslengine.config.resolve import freeze

    path = "config.DATA.TRAIN.TRANSFORMS.1.size"
    run = freeze(
        Composition([Layer("a.yaml", {"config": recipe()})], [Assignment(path, 9, "")], "x")
    )
    (line,) = [each for each in show(run).splitlines() if "TRANSFORMS:" in each and "#" in each]
    assert line.endswith("# command line")


def test_all_prints_the_meaning_of_every_key_above_it_in_80_columns() -> None:
    run = resolved(DISTRIBUTED__BACKEND="nccl", SEED_VALUE=3)
    text = show(run, explained=True)
    assert yaml.safe_load(text) == yaml.safe_load(show(run))
    lines = text.splitlines()
    assert max(len(line) for line in lines if line.lstrip().startswith("#")) <= 80

    def above(key: str) -> list[str]:
        """The comments above the first line of this key."""
        at = next(n for n, line in enumerate(lines) if line.strip().startswith(f"{key}:"))
        first = at
        while lines[first - 1].lstrip().startswith("#"):
            first -= 1
        return [line.strip() for line in lines[first:at]]

    assert above("VERBOSE") == [
        "# Print on the screen what is otherwise only written to the log file."
    ]
    assert len(above("REFERENCE_WORLD_SIZE")) == 3
    assert above("SEED_VALUE")[-1] == "# [the given dict]"
    assert above("GRAD_SCALER") == ["# The loss scaling of float16."]
    assert above("FEATURE_EVAL_SETTINGS") == ["# Evaluation of a trained trunk's features."]
    assert above("temperature") == ["# Similarities are divided by it."]


def test_every_key_of_the_schema_says_what_it_means() -> None:
    silent = [
        f"{path}.{key}"
        for path, node in typed_nodes(schema())
        for key in fields_of(node)
        if not meanings(OmegaConf.get_type(node)).get(key) and not fields_of(node._get_node(key))
    ]
    assert silent == []


def test_meanings_of_what_has_no_file() -> None:
    assert meanings(dataclasses.make_dataclass("Typed", [("KEY", int)])) == {}
