"""What is shown and stored of a config: origins and meanings, and no secret."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf

from sslengine.config.compose import Assignment, Composition
from sslengine.config.files import Layer
from sslengine.config.resolve import Resolved, freeze, resolve_dict
from sslengine.config.show import show
from sslengine.config.stored import as_stored, changes, is_secret, texts_of_environment
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
    assert len(above("EXPECTED_RESULTS")) > 3
    assert above("SEED_VALUE")[-1] == "# [the given dict]"
    assert above("GRAD_SCALER") == ["# The loss scaling of float16."]
    assert above("FEATURE_EVAL_SETTINGS") == ["# Evaluation of a trained trunk's features."]
    assert above("temperature") == ["# Similarities are divided by it."]


# ---- stored


HOOK = "tests.hooks.test_default:Plain"


def _with(assignments: dict[str, Any], **more: Any) -> Resolved:
    typed = [Assignment(path, value, "", may_be_new=True) for path, value in assignments.items()]
    return freeze(Composition([Layer("a.yaml", {"config": recipe(**more)})], typed, "x"))


def test_what_reads_the_environment_is_found_directly_and_by_other_values(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TEST_URL", "https://hunter2@x")
    tree = {
        "a": "${oc.env:TEST_URL}", "b": [{"c": "at ${oc.env:TEST_URL}/x"}], "d": "${a}!",
        "e": "${f}", "f": "plain", "g": "${oc.env:NOT_THERE_AT_ALL,default}", "h": "${b.0.c}",
        "i": "${oc.decode:'\"${oc.env:TEST_URL}\"'}", "j": None, "k": "???", "l": "${missing}",
    }  # fmt: skip
    found = texts_of_environment(OmegaConf.create(tree))
    del found["i",]  # decoded: what is a number there is kept as one
    assert found == {
        ("a",): tree["a"], ("b", 0, "c"): "at ${oc.env:TEST_URL}/x", ("d",): "${a}!",
        ("g",): tree["g"], ("h",): "${b.0.c}",
    }  # fmt: skip
    assert OmegaConf.create({"a": "${oc.env:TEST_URL}"}).a == "https://hunter2@x"


def test_no_value_of_the_environment_is_shown_at_any_depth(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TEST_URL", "hunter2")
    monkeypatch.setenv("TEST_SEED", "17")
    run = _with(
        {"config.TRACKER": {"url": "${oc.env:TEST_URL}", "deep": [{"u": "${oc.env:TEST_URL}"}]},
         "config.MORE": "${config.TRACKER.url}/x", "config.SEED_VALUE": "${oc.env:TEST_SEED}"},
    )  # fmt: skip
    assert run.config.TRACKER.deep[0].u == "hunter2"
    assert run.config.MORE == "hunter2/x"
    text = show(run)
    assert "hunter2" not in text
    shown = yaml.safe_load(text)["config"]
    assert shown["TRACKER"]["deep"] == [{"u": "${oc.env:TEST_URL}"}]
    assert shown["MORE"] == "${config.TRACKER.url}/x"
    assert shown["SEED_VALUE"] == 17  # a number is no secret, and says what was run


def test_secrets_that_are_typed_are_masked_by_their_names() -> None:
    run = _with(
        {"config.TRACKER": {"api_key": "hunter2", "url": "x", "login": [{"Password": "hunter2"}]}},
        HOOKS__EXTRA=[{"name": HOOK}],
    )
    shown = yaml.safe_load(show(run))["config"]
    assert shown["TRACKER"] == {"api_key": "***", "url": "x", "login": [{"Password": "***"}]}
    assert run.config.TRACKER.api_key == "hunter2"


@pytest.mark.parametrize("name", ["token", "HF_TOKEN", "api_key", "apikey", "x.password", "auth"])
def test_names_of_secrets(name: str) -> None:
    assert is_secret(name)


@pytest.mark.parametrize("name", ["key", "INPUT_KEY_NAMES", "tokens", "author", "cls_tokens", 0])
def test_names_of_no_secrets(name: object) -> None:
    assert not is_secret(name)


def test_a_later_start_is_compared_rightly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another token is no change of the run; another temperature or loss from there is one."""

    def start(token: str, temperature: str, typed: str) -> Resolved:
        monkeypatch.setenv("TEST_TOKEN", token)
        monkeypatch.setenv("TEST_T", temperature)
        return _with(
            {"config.TRACKER": {"token": typed, "url": "${oc.env:TEST_TOKEN}"},
             "config.LOSS.simclr_info_nce_loss.temperature": "${oc.env:TEST_T}",
             "config.OPTIMIZER.name": "${oc.env:TEST_OPTIMIZER,sgd}"},
        )  # fmt: skip

    first = show(start("a", "0.5", "x"))
    assert "url: ${oc.env:TEST_TOKEN}" in first
    for now, expected in (
        (start("a", "0.5", "x"), []),
        (start("b", "0.5", "y"), []),
        (start("b", "0.7", "x"), ["config.LOSS.simclr_info_nce_loss.temperature: 0.5 -> 0.7"]),
    ):
        found = changes(first, as_stored(now.config, now.texts), now.origins)
        assert [str(each) for each in found] == expected
        assert not any(each.allowed for each in found)
    monkeypatch.setenv("TEST_OPTIMIZER", "adamw")
    (change,) = (
        each
        for each in changes(first, as_stored(*_of(start("a", "0.5", "x"))), {})
        if each.path == "OPTIMIZER.name"
    )
    assert str(change) == "config.OPTIMIZER.name: sgd -> adamw"


def _of(run: Resolved) -> tuple[Any, Any]:
    return run.config, run.texts


def test_the_back_end_stays_the_choice_that_it_was() -> None:
    """What `auto` stands for depends on the machine, and the run may be opened on another one."""
    shown = yaml.safe_load(show(resolved()))["config"]
    assert shown["DATA"]["AUGMENT_BACKEND"] == "auto"
    assert resolve_dict(shown).config.DATA.AUGMENT_BACKEND == "auto"
