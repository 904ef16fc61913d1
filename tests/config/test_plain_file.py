from __future__ import annotations

import os
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from sslengine.config.show import show
from sslengine.config.yaml_text import LARGEST, read_plain
from sslengine.errors import ConfigError
from tests.config.recipes import resolved


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


@pytest.mark.parametrize(
    "text",
    ["1e-4", "1.5e3", ".5E+2", "-2e6", "1_0e1", "12", "0x1f", "1e", "e4", "2026-11-22", "on"],
)
def test_scalars_mean_what_they_mean_in_all_our_yaml(tmp_path: Path, text: str) -> None:
    tree, _ = _read(tmp_path, f"config: {{a: {text}}}")
    ours = OmegaConf.create(f"a: {text}").a
    assert (tree["config"], type(tree["config"]["a"])) == ({"a": ours}, type(ours))  # type: ignore[index]


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
