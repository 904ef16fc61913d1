from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import pickle
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sslengine.data.manifest.index import (
    BY_VALUE,
    TOLD_EVERY,
    FoundImages,
    ImageTable,
    ProgressLog,
    SharedArray,
    SharedStrings,
    indexed,
    make_string_arrays,
    stamp,
    turn,
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

    def __call__(self) -> FoundImages:
        self.looked += 1
        words = [b"one", b"two", b"%d" % self.looked]
        arrays = {**make_string_arrays("words", words), "numbers": np.arange(7, dtype=np.int16)}
        return FoundImages(arrays, [stamp(self.folder)], self.entries)

    def open(self, cached: bool = True, key: str = "words") -> ImageTable:
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


def test_few_entries_fresh_folders_and_a_key_are_not_kept(folder: Path, cache: Path) -> None:
    few = Finder(folder, entries=9_999)
    assert [few.word(), few.word()] == [1, 2]
    kept = Finder(folder)
    assert [kept.word(cached=False), kept.word(cached=False)] == [1, 2]
    os.utime(folder)
    assert [kept.word(), kept.word()] == [3, 4]
    assert not list(cache.glob("*.json"))


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


@pytest.mark.parametrize("damage", [cut, garble])
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


def test_without_a_place_to_keep_it_one_warning(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError("read-only file system")

    monkeypatch.setattr(Path, "mkdir", refuse)
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


LARGE = np.arange(BY_VALUE).reshape(2, -1)


def copy(thing: Any) -> Any:
    return pickle.loads(pickle.dumps(thing))


def total(shared: SharedArray, results: Any) -> None:
    results.put(int(shared.array.sum()))


@pytest.mark.parametrize("values", [LARGE, LARGE[:, ::3], np.arange(5), np.zeros((0, 3), np.int8)])
def test_another_process_gets_the_same_values(values: np.ndarray) -> None:
    other = copy(SharedArray.share(values)).array
    np.testing.assert_array_equal(other, values)
    assert other.dtype == values.dtype


def test_it_reaches_another_process() -> None:
    context: Any = multiprocessing.get_context("forkserver")
    results, shared = context.SimpleQueue(), SharedArray.share(LARGE)
    process = context.Process(target=total, args=(shared, results))
    process.start()
    process.join(60)
    assert process.exitcode == 0
    assert results.get() == LARGE.sum()


def test_both_see_one_memory() -> None:
    """The mapping of both is the same nameless file."""
    shared = SharedArray.share(LARGE)
    other = copy(shared)
    inodes = {os.fstat(each._file.descriptor).st_ino for each in (shared, other)}
    assert len(inodes) == 1


def test_nothing_is_left_open() -> None:
    def open_files() -> int:
        return len(os.listdir("/proc/self/fd"))

    gc.collect()  # what earlier tests have left
    before = open_files()
    kept = [SharedArray.share(LARGE) for _ in range(5)]
    assert open_files() > before
    del kept
    gc.collect()
    assert open_files() == before


def test_a_file_on_a_disk_also_when_its_name_has_gone(tmp_path: Path) -> None:
    LARGE.astype(np.int32).tofile(tmp_path / "values")
    shared = SharedArray.map_file(tmp_path / "values", "<i4", LARGE.shape)
    (tmp_path / "values").unlink()
    np.testing.assert_array_equal(copy(shared).array, LARGE)


def test_it_is_not_to_be_written() -> None:
    with pytest.raises(ValueError, match="read-only"):
        SharedArray.share(LARGE).array[0, 0] = 1


WORDS = [b"", b"one", b"\xff\x00", "Zürich".encode(), b"x" * 70_000]


def shared_strings(strings: Iterable[bytes]) -> SharedStrings:
    arrays = make_string_arrays("words", strings)
    return SharedStrings(*map(SharedArray.share, arrays.values()))


def test_strings() -> None:
    strings = shared_strings(WORDS)
    for each in (strings, copy(strings)):
        assert list(each) == WORDS
        assert len(each) == 5
        assert each[-1] == WORDS[-1]
        assert each[1:3] == WORDS[1:3]
        for outside in (5, -6):
            with pytest.raises(IndexError):
                each[outside]


def test_one_at_a_time(tmp_path: Path) -> None:
    within, most = 0, 0

    def work(_: int) -> None:
        nonlocal within, most
        with turn(tmp_path / "lock", "counting"):
            within += 1
            most = max(most, within)
            threading.Event().wait(0.005)
            within -= 1

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(16)))
    assert most == 1


def test_told_every_ten_seconds(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with caplog.at_level(logging.INFO, "sslengine"):
        progress, of_many = ProgressLog("looking through /data"), ProgressLog("writing", total=4000)
        for second in range(25):
            now = second * TOLD_EVERY / 10
            progress.tell(second * 1000, "images")
        of_many.tell(1234, "images")
    assert caplog.messages == [
        "looking through /data: 10,000 images so far",
        "looking through /data: 20,000 images so far",
        "writing: 1,234 of 4,000 images so far",
    ]


def test_many_paths_go_to_a_worker_as_a_reference() -> None:
    paths = shared_strings(b"/%d/%d.jpg" % (number % 5000, number) for number in range(20_000))
    assert len(pickle.dumps(paths)) < 1500
