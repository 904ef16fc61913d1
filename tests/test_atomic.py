from __future__ import annotations

import os
from pathlib import Path

import pytest

from sslengine import atomic
from sslengine.atomic import whole_file, write_whole


def test_a_file_and_its_folder_are_made(tmp_path: Path) -> None:
    write_whole(tmp_path / "a" / "b.txt", b"new")
    assert (tmp_path / "a" / "b.txt").read_bytes() == b"new"


def test_a_failure_leaves_the_old_content_and_no_litter(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(RuntimeError), whole_file(path) as file:  # noqa: PT012
        file.write(b"half of the n")
        raise RuntimeError
    assert path.read_bytes() == b"old"
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_until_the_end_a_reader_sees_the_old_content(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with whole_file(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"


def test_every_folder_that_is_made_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(atomic, "sync_folder", synced.append)
    atomic.make_folder(tmp_path / "a" / "b")
    assert synced == [tmp_path, tmp_path / "a"]
    atomic.make_folder(tmp_path / "a" / "b")
    assert len(synced) == 2


def test_files_of_others_and_their_folders_are_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_text("x")
    seen: list[int] = []
    fsync = os.fsync

    def watch(file: int) -> None:
        seen.append(os.fstat(file).st_ino)
        fsync(file)

    monkeypatch.setattr(os, "fsync", watch)
    atomic.sync_files([tmp_path / "a", tmp_path / "not there"])
    assert seen == [(tmp_path / "a").stat().st_ino, tmp_path.stat().st_ino]
