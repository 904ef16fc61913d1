from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sslengine.data.manifest.shared import BY_VALUE, SharedArray, SharedStrings, joined

LARGE = np.arange(BY_VALUE).reshape(2, -1)


def copy(thing: Any) -> Any:
    return pickle.loads(pickle.dumps(thing))


def total(shared: SharedArray, results: Any) -> None:
    results.put(int(shared.array.sum()))


@pytest.mark.parametrize("values", [LARGE, LARGE[:, ::3], np.arange(5), np.zeros((0, 3), np.int8)])
def test_another_process_gets_the_same_values(values: np.ndarray) -> None:
    other = copy(SharedArray.of(values)).array
    np.testing.assert_array_equal(other, values)
    assert other.dtype == values.dtype


def test_a_reference_is_sent_not_the_values() -> None:
    assert len(pickle.dumps(SharedArray.of(LARGE))) < 300


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_it_reaches_processes_however_they_start(method: str) -> None:
    context: Any = multiprocessing.get_context(method)
    results, shared = context.SimpleQueue(), SharedArray.of(LARGE)
    process = context.Process(target=total, args=(shared, results))
    process.start()
    process.join(60)
    assert process.exitcode == 0
    assert results.get() == LARGE.sum()


def test_both_see_one_memory() -> None:
    """The mapping of both is the same nameless file."""
    shared = SharedArray.of(LARGE)
    other = copy(shared)
    inodes = {os.fstat(each._file.descriptor).st_ino for each in (shared, other)}
    assert len(inodes) == 1


def test_the_receiver_outlives_the_sender() -> None:
    shared = SharedArray.of(LARGE)
    other = copy(shared)
    del shared
    gc.collect()
    np.testing.assert_array_equal(copy(other).array, LARGE)


def test_nothing_is_left_open() -> None:
    def open_files() -> int:
        return len(os.listdir("/proc/self/fd"))

    gc.collect()  # what earlier tests have left
    before = open_files()
    kept = [SharedArray.of(LARGE) for _ in range(5)]
    assert open_files() > before
    del kept
    gc.collect()
    assert open_files() == before


def test_a_file_on_a_disk_also_when_its_name_has_gone(tmp_path: Path) -> None:
    LARGE.astype(np.int32).tofile(tmp_path / "values")
    shared = SharedArray.on_disk(tmp_path / "values", "<i4", LARGE.shape)
    (tmp_path / "values").unlink()
    np.testing.assert_array_equal(copy(shared).array, LARGE)


def test_it_is_not_to_be_written() -> None:
    with pytest.raises(ValueError, match="read-only"):
        SharedArray.of(LARGE).array[0, 0] = 1


WORDS = [b"", b"one", b"\xff\x00", "Zürich".encode(), b"x" * 70_000]


def test_strings() -> None:
    strings = SharedStrings.of(WORDS)
    for each in (strings, copy(strings)):
        assert list(each) == WORDS
        assert len(each) == 5
        assert each[-1] == WORDS[-1]
        assert each[1:3] == WORDS[1:3]
        for outside in (5, -6):
            with pytest.raises(IndexError):
                each[outside]


def test_no_strings() -> None:
    assert list(SharedStrings.of([])) == []


def test_strings_in_groups() -> None:
    text, starts = joined([WORDS[:2], [], iter(WORDS[2:])])
    assert text.tobytes() == b"".join(WORDS)
    assert starts.tolist() == [0, 0, 3, 5, 12, 70_012]
