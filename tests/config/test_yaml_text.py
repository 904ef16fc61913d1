"""YAML is read and written as OmegaConf does it."""

from __future__ import annotations

import io
import math
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from sslengine.config.yaml_text import dump, load

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


# PyYAML writes the line breaks of Unicode as such, and reads them as "\n".
TEXTS = st.text(st.characters(exclude_characters="\x85\u2028\u2029"), max_size=30)


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
    with pytest.raises(yaml.constructor.ConstructorError, match="duplicate key b"):
        load("a: {b: 1, c: 2, b: 3}")
