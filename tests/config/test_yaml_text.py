"""YAML: what a scalar means, what is written, and files of runs that are plain data."""

from __future__ import annotations

import io
import math
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from sslengine.config.show import show
from sslengine.config.yaml_text import LARGEST, dump, load, read_plain
from sslengine.errors import ConfigError
from tests.config.recipes import resolved

SCALARS = st.one_of(
    st.text("0123456789_.eE+-:", min_size=1, max_size=9),
    st.from_regex(r"[-+]?[0-9_]{1,4}\.?[0-9_]{0,3}([eE][-+]?[0-9]{1,2})?", fullmatch=True),
    st.sampled_from(["yes", "n", "Off", "true", "~", "null", "0x1f", "0o17", "017", "2026-11-22",
                     ".inf", "-.INF", ".nan", "1:30", "12:30:45.5", "=", "<<", "nan", "1e999"]),
)  # fmt: skip


def _by_omegaconf(text: str) -> Any:
    try:
        return OmegaConf.load(io.StringIO(text)).a
    except (yaml.YAMLError, ValueError) as error:
        return type(error)


def _ours(text: str) -> Any:
    try:
        return load(text)["a"]
    except (yaml.YAMLError, ValueError) as error:
        return type(error)


@given(SCALARS)
def test_a_scalar_means_the_same(text: str) -> None:
    ours, theirs = _ours(f"a: {text}"), _by_omegaconf(f"a: {text}")
    alike = ours == theirs or (isinstance(ours, float) and math.isnan(ours) and math.isnan(theirs))
    assert alike, (ours, theirs)
    assert type(ours) is type(theirs)


TEXTS = st.one_of(st.text(max_size=30), st.text("a \n\x85\u2028\u2029'\":-", max_size=9))


@given(st.one_of(SCALARS, TEXTS, st.floats(), st.integers(), st.booleans()))
def test_what_is_written_is_read_by_both(value: Any) -> None:
    text = dump({"a": value})
    for found in (load(text)["a"], yaml.safe_load(text)["a"]):
        assert type(found) is type(value)
        assert found == value or math.isnan(found)
    if not (isinstance(value, str) and "${" in value):
        theirs = _by_omegaconf(text)
        assert type(theirs) is type(value)
        assert theirs == value or math.isnan(theirs)


@pytest.mark.parametrize(
    "value", [{"a": [{"b": None, "c": [1, 2.5e-7, "x: y"]}, []], "d": {}}, {"é": "long text " * 30}]
)
def test_it_is_written_alike(value: Any) -> None:
    assert dump(value) == OmegaConf.to_yaml(OmegaConf.create(value))
    twice = value.get("a", [1])
    assert "&" not in dump({"a": twice, "b": twice})


def test_a_key_that_is_there_twice() -> None:
    with pytest.raises(yaml.constructor.ConstructorError, match="duplicate key b\n.*line 3"):
        load("a:\n  b: 1\n  b: 3")


@pytest.mark.parametrize("text", ["[" * 10**6, "- " * 10**6, "? " * 10**6])
def test_what_is_too_deep_is_refused_before_it_is_read(text: str) -> None:
    with pytest.raises(yaml.constructor.ConstructorError, match="more than 100 levels is refused"):
        load(text)


@pytest.mark.parametrize("number", ["1" * 5000, "0x" + "f" * 5000, "1" + ":1" * 5000])
def test_a_number_that_python_would_not_print_is_refused(number: str) -> None:
    with pytest.raises(yaml.YAMLError, match="digits is refused.*line 2"):
        load(f"a: 1\nb: [{number}]")


# ---- plain file


def _read(folder: Path, text: str | bytes) -> tuple[dict[str, object], list[str]]:
    path = folder / "config.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_plain(path)


def test_what_a_run_writes_is_read_as_it_was(tmp_path: Path) -> None:
    run = resolved(OPTIMIZER__weight_decay=1e-6)
    tree, not_read = _read(tmp_path, show(run))
    assert tree["config"] == run.config
    assert isinstance(tree["config"]["OPTIMIZER"]["weight_decay"], float)  # type: ignore[index]
    assert not_read == []


def test_interpolations_stay_text_and_are_named(tmp_path: Path) -> None:
    text = "config:\n  A: [{b: '${oc.env:HOME}/x'}, $y]\n  C: ${config.A}\n  D: '$${x}'\n"
    tree, not_read = _read(tmp_path, text)
    assert tree["config"] == {
        "A": [{"b": "$not_read{oc.env:HOME}/x"}, "$y"], "C": "$not_read{config.A}",
        "D": "$$not_read{x}",
    }  # fmt: skip
    assert not_read == ["config.A.0.b", "config.C", "config.D"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("config: !!python/name:os.system x", r"the tag tag:yaml.org,2002:python/name:os.system"),
        ("config: {a: !!set {b, c}}", "the tag tag:yaml.org,2002:set is refused"),
        ("config: {a: !mine 1}", "the tag !mine is refused"),
        ("config: {a: &x [1], b: *x}", "an anchor or alias is refused .*\n.*line 1, column 13"),
        ("config: {a: 1, a: 2}", "duplicate key a"),
        ("config: {a: [", "not plain YAML: while parsing"),
        ("config: " + "[" * 10**6, "not plain YAML: more than 100 levels is refused"),
        ("a: 1\n--- \nb: 2", "not plain YAML: expected a single document"),
        ("PLUGINS: [x]", "expected `config:` with keys below it"),
        ("- config", "expected `config:` with keys below it"),
        ("config: null", "expected `config:` with keys below it"),
        ("", "expected `config:` with keys below it"),
        ("defaults: [other]\nconfig: {}", "defaults: this file includes others"),
        (b"config: {a: \xff}", "is not UTF-8"),
        (b"config: {a: 1}\x00", "not plain YAML"),
        ("config: {}" + " " * LARGEST, "has more than"),
    ],
)
def test_what_is_not_plain_is_refused(tmp_path: Path, text: str | bytes, told: str) -> None:
    with pytest.raises(ConfigError, match=told) as raised:
        _read(tmp_path, text)
    assert str(raised.value).startswith(str(tmp_path / "config.yaml"))


def test_only_a_file_that_lies_there_itself(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    with pytest.raises(ConfigError, match=r"config.yaml cannot be read: No such file"):
        read_plain(path)
    (tmp_path / "other").write_text("config: {}")
    path.symlink_to("other")
    with pytest.raises(ConfigError, match=r"It is a link: give the folder that it leads to"):
        read_plain(path)
    path.unlink()
    os.mkfifo(path)  # nobody writes to it: opening it would wait for ever
    with pytest.raises(ConfigError, match="is not a regular file"):
        read_plain(path)
