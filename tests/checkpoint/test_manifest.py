from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from sslengine.checkpoint import files
from sslengine.checkpoint.manifest import Manifest, path_for, read_manifest, sha256_of, verify
from sslengine.errors import CheckpointError


def test_a_manifest_says_what_the_file_is(tmp_path: Path) -> None:
    facts = {"iteration": 7, "world_size": 2, "versions": {"torch": "2"}, "number": 3}
    files.write({"x": 1}, tmp_path, "model_phase0.torch", facts)
    content = (tmp_path / "model_phase0.torch").read_bytes()
    stored = json.loads((tmp_path / "model_phase0.json").read_text())
    assert stored["sha256"] == hashlib.sha256(content).hexdigest()
    assert stored["bytes"] == len(content)
    assert {key: stored[key] for key in facts} == facts
    assert verify(tmp_path / "model_phase0.torch") == read_manifest(tmp_path / "model_phase0.torch")


@pytest.mark.parametrize("place", [0, 500, -1])
def test_one_flipped_bit_is_found(tmp_path: Path, place: int) -> None:
    path = tmp_path / "model_phase0.torch"
    files.write({"x": list(range(200))}, tmp_path, path.name)
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"not intact: .*sha256"):
        verify(path)


@pytest.mark.parametrize("size", [0, 100])
def test_another_size_is_found(tmp_path: Path, size: int) -> None:
    path = tmp_path / "model_phase0.torch"
    files.write({"x": 1}, tmp_path, path.name)
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(CheckpointError, match=f"it has {size} bytes; its manifest has"):
        verify(path)


def test_while_a_file_is_replaced_both_contents_count(tmp_path: Path) -> None:
    """Whenever the power goes: the manifest is new already, the file is the old or the new one."""
    path = tmp_path / "model_phase0.torch"
    files.write({"x": 1}, tmp_path, path.name)
    old = path.read_bytes()
    files.write({"x": "another"}, tmp_path, path.name)
    verify(path)
    path.write_bytes(old)
    verify(path)
    path.write_bytes(old + b"\0")
    with pytest.raises(CheckpointError, match="sha256"):
        verify(path)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"file": "a"}', "[" * 100_000])
def test_a_broken_manifest_is_an_error_by_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "model_phase0.torch"
    path_for(path).write_text(text)
    with pytest.raises(CheckpointError, match=r"model_phase0\.json is not a manifest"):
        read_manifest(path)


def test_a_missing_manifest_or_file(tmp_path: Path) -> None:
    path = tmp_path / "model_phase0.torch"
    path.write_bytes(b"x")
    with pytest.raises(CheckpointError, match=r"has no manifest model_phase0\.json"):
        verify(path)
    Manifest(path.name, 1, sha256_of(path)).write(tmp_path)
    path.unlink()
    with pytest.raises(CheckpointError, match="cannot be read: No such file"):
        verify(path)


def test_what_a_later_version_adds_is_no_error(tmp_path: Path) -> None:
    path = tmp_path / "model_phase0.torch"
    files.write({"x": 1}, tmp_path, path.name)
    stored = json.loads(path_for(path).read_text())
    path_for(path).write_text(json.dumps({**stored, "from_the_future": 1}))
    verify(path)


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"file": "../../precious"}, "precious"),
        ({"file": None}, "None"),
        ({"bytes": "7"}, "bytes"),
        ({"bytes": True}, "bytes"),
        ({"sha256": 7}, "sha256"),
        ({"number": "nine"}, "number"),
        ({"train_phase": 1.5}, "train_phase"),
        ({"results": {"test": 3}}, "results"),
        ({"versions": []}, "versions"),
        ({"files": {"a": {"bytes": 1, "sha256": "x"}}}, "files"),
    ],
)
def test_values_of_the_wrong_kind_are_an_error_by_name(
    tmp_path: Path, change: dict[str, object], key: str
) -> None:
    path = tmp_path / "model_phase0.torch"
    files.write({"x": 1}, tmp_path, path.name)
    stored = json.loads(path_for(path).read_text())
    path_for(path).write_text(json.dumps(stored | change))
    with pytest.raises(CheckpointError, match=rf"model_phase0\.json is not a manifest: .*{key}"):
        read_manifest(path)


@pytest.mark.parametrize("name", ["../x", "/etc/hostname", "..", "", "a/b"])
def test_the_files_of_a_folder_lie_in_it(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "model_phase0.shards"
    folder.mkdir()
    listed = {name: {"bytes": 1, "sha256": "x"}}
    Manifest(folder.name, 1, "", files=listed).write(tmp_path)
    with pytest.raises(CheckpointError, match="should be a name in the folder"):
        verify(folder)
