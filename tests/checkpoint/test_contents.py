from __future__ import annotations

import json
from pathlib import Path

import pytest

from sslengine.checkpoint import contents, files


def _put(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name.rstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir() if name.endswith("/") else path.write_text("mine")


@pytest.mark.parametrize(
    "names",
    [
        (),
        ("log.txt", "log_rank1.txt", "flight_recorder/", "checkpoints/"),
        ("earlier/", ".lock", "sweep_0/", "sweep_12/"),
        ("nohup.out", "run-17.err", "output.log"),
        (".config.yaml.123.tmp", ".metrics.csv.7.tmp", ".nfs0001", ".DS_Store"),
    ],
)
def test_a_new_folder_or_one_of_a_run_that_never_began(
    tmp_path: Path, names: tuple[str, ...]
) -> None:
    _put(tmp_path, *names)
    assert contents.foreign(tmp_path) == []
    assert contents.foreign(tmp_path / "not there") == []


@pytest.mark.parametrize(
    "name",
    [
        "notes.txt",
        "images/",
        "src/",
        "config.yaml",
        "metrics.jsonl",
        ".git/",
        "features/",
        ".x.tmp",
    ],
)
def test_the_files_of_others(tmp_path: Path, name: str) -> None:
    _put(tmp_path, name, "log.txt")
    assert contents.foreign(tmp_path) == [name.rstrip("/")]


HEAD = "# @package _global_\nengine_name: train  # default\nnode_id: 0\nconfig:\n  X: 1\n"


@pytest.mark.parametrize("name", ["config.yaml", "config_evaluate.yaml"])
def test_a_run_is_known_by_its_config(tmp_path: Path, name: str) -> None:
    _put(tmp_path, "notes.txt")
    (tmp_path / name).write_text(HEAD)
    assert contents.foreign(tmp_path) == []


@pytest.mark.parametrize(
    "text", ["# @package _global_\nconfig:\n  LOSS: {}\n", "engine_name: train\n", "", "\udc80"]
)
def test_a_config_that_somebody_wrote_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.yaml").write_bytes(text.encode(errors="surrogateescape"))
    assert contents.foreign(tmp_path) == ["config.yaml"]


def test_a_run_is_known_by_its_lock_or_by_its_checkpoints(tmp_path: Path) -> None:
    _put(tmp_path, "a/notes.txt", "b/notes.txt", "c/notes.txt", "c/checkpoints/model_phase0.torch")
    (tmp_path / "a" / ".lock").write_text(json.dumps({"host": "h", "pid": 1, "since": ""}))
    files.write({}, tmp_path / "b" / "checkpoints", "model_phase0.torch")
    found = {name: contents.foreign(tmp_path / name) for name in "abc"}
    assert found == {"a": [], "b": [], "c": ["notes.txt"]}  # a file without its manifest


def test_what_belongs_to_a_run_ends_with_the_checkpoints(tmp_path: Path) -> None:
    _put(tmp_path, "checkpoints/", "earlier/", "notes.txt", "tb_logs/", "config.yaml", ".lock")
    names = [path.name for path in contents.results(tmp_path)]
    assert names == ["config.yaml", "tb_logs", "checkpoints"]
