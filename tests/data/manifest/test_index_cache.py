from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from sslengine.data.manifest.index_cache import (
    Found,
    Index,
    cache_folder,
    indexed,
    stamp,
    string_arrays,
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SSLENGINE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "index"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """It has not changed for years."""
    made = tmp_path / "data"
    made.mkdir()
    os.utime(made, (1e9, 1e9))
    return made


class Finder:
    """Counts how often it looks."""

    def __init__(self, folder: Path, entries: int = 10_000) -> None:
        self.folder, self.entries, self.looked = folder, entries, 0

    def __call__(self) -> Found:
        self.looked += 1
        words = [b"one", b"two", b"%d" % self.looked]
        arrays = {**string_arrays("words", words), "numbers": np.arange(7, dtype=np.int16)}
        return Found(arrays, [stamp(self.folder)], self.entries)

    def open(self, cached: bool = True, key: str = "words") -> Index:
        return indexed(key, "looking for words", self, cached)

    def word(self, **keys: bool) -> int:
        return int(self.open(**keys).strings("words")[2])


def test_found_once_as_long_as_nothing_changes(folder: Path) -> None:
    finder = Finder(folder)
    assert [finder.word(), finder.word(), finder.word()] == [1, 1, 1]
    index = finder.open()
    assert list(index.strings("words")) == [b"one", b"two", b"1"]
    np.testing.assert_array_equal(index["numbers"].array, np.arange(7, dtype=np.int16))
    (folder / "new").touch()
    os.utime(folder, (2e9 - 1e9 + 5, 1e9 + 5))
    assert [finder.word(), finder.word()] == [2, 2]
    os.rename(folder, folder.with_name("elsewhere"))
    with pytest.raises(FileNotFoundError):
        finder.open()


def test_a_file_of_another_size_is_another_file(folder: Path) -> None:
    file = folder / "list"
    for content in ("ab", "abc"):
        file.write_text(content)
        os.utime(file, (1e9, 1e9))
        finder = Finder(file)
        finder.open()
        assert finder.looked == 1


def test_few_entries_fresh_folders_and_a_key_are_not_kept(folder: Path, cache: Path) -> None:
    few = Finder(folder, entries=9_999)
    assert [few.word(), few.word()] == [1, 2]
    kept = Finder(folder)
    assert [kept.word(cached=False), kept.word(cached=False)] == [1, 2]
    os.utime(folder)
    assert [kept.word(), kept.word()] == [3, 4]
    assert not list(cache.glob("*.json"))


def test_each_key_has_its_own(folder: Path) -> None:
    one, other = Finder(folder), Finder(folder)
    one.open(key="one")
    other.open(key="other")
    assert other.looked == 1


def keep_half(monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(old: object, new: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", killed)


def cut(cache: Path) -> None:
    (array,) = cache.glob("*/numbers")
    array.write_bytes(array.read_bytes()[:-1])


def garble(cache: Path) -> None:
    (told,) = cache.glob("*.json")
    told.write_text(told.read_text()[:-5])


def strip(cache: Path) -> None:
    (told,) = cache.glob("*.json")
    told.write_text(json.dumps({"folder": "nowhere"}))


@pytest.mark.parametrize("damage", [cut, garble, strip])
def test_what_is_not_whole_is_found_anew(
    folder: Path, cache: Path, damage: Callable[[Path], None]
) -> None:
    finder = Finder(folder)
    finder.open()
    damage(cache)
    assert [finder.word(), finder.word()] == [2, 2]


def test_killed_while_keeping_it(
    folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finder = Finder(folder)
    with monkeypatch.context() as patch:
        keep_half(patch)
        with pytest.raises(KeyboardInterrupt):
            finder.open()
    assert [finder.word(), finder.word()] == [2, 2]
    # What was left goes when nobody can be using it.
    month = time.time() - 31 * 24 * 3600
    leftovers = [each for each in cache.iterdir() if each.is_dir()]
    assert len(leftovers) == 2
    for each in leftovers:
        os.utime(each, (month, month))
    os.utime(folder, (1e9 + 7, 1e9 + 7))
    assert finder.word() == 3
    assert len([each for each in cache.iterdir() if each.is_dir()]) == 1


def test_an_earlier_index_stays_while_it_may_be_in_use(folder: Path) -> None:
    finder = Finder(folder)
    before = finder.open()
    os.utime(folder, (1e9 + 7, 1e9 + 7))
    finder.open()
    assert before.strings("words")[2] == b"1"


@pytest.mark.parametrize("method", ["mkdir", "open"])
def test_without_a_place_to_keep_it_one_warning(
    folder: Path,
    method: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError("read-only file system")

    monkeypatch.setattr(Path, method, refuse)
    finder = Finder(folder)
    assert finder.word() == 1
    assert caplog.messages == [
        "looking for words, each time again: no index can be kept (read-only file system)"
    ]


def test_a_full_disk(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(_: int) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert Finder(folder).word() == 1
    assert "the index cannot be kept (no space left on device)" in caplog.text


def test_processes_take_turns_and_one_looks(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    finder = Finder(folder)
    with caplog.at_level(logging.INFO, "sslengine"), ThreadPoolExecutor(8) as pool:
        indexes = list(pool.map(lambda _: finder.word(), range(8)))
    assert indexes == [1] * 8
    assert finder.looked == 1


def test_where_it_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert cache_folder() == tmp_path / "cache"
    monkeypatch.delenv("SSLENGINE_CACHE")
    monkeypatch.setenv("HOME", "/home/someone")
    assert cache_folder() == Path("/home/someone/.cache/sslengine")
