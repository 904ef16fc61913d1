from __future__ import annotations

import multiprocessing
import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from sslengine.data.dataset import SSLDataset
from sslengine.data.options import SplitOptions
from tools.perf_measurement.bench_paths import make_paths, processes, pss

CONTEXT = multiprocessing.get_context("fork")
SOURCES = ("disk_folder", "disk_filelist")


def opened(source: str, path: Path, **keys: object) -> SSLDataset:
    options = SplitOptions(DATA_SOURCES=[source], DATA_PATHS=[str(path)], **keys)  # type: ignore[arg-type]
    return SSLDataset(options, "TRAIN", 0)


def test_the_paths_are_those_of_images(tmp_path: Path) -> None:
    for source, path in zip(SOURCES, make_paths(tmp_path, 2000), strict=True):
        data = opened(source, path, LABEL_TYPE="zero")
        assert len(data) == 2000
        assert data[0, 1999]["data_valid"] == [1]
        assert data.name(1999).endswith("class_000001/picture_000999.jpg")


def test_memory_of_all_processes() -> None:
    event = CONTEXT.Event()
    before, alone = set(processes()), pss()
    child = CONTEXT.Process(target=event.wait)
    child.start()
    assert os.getpid() in before
    assert set(processes()) - before == {child.pid}
    # Pages that both share are counted once.
    assert pss() < 1.5 * alone + 50
    event.set()
    child.join()
    assert child.pid not in processes()


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_what_goes_to_a_worker_does_not_grow_with_a_million_files(tmp_path: Path) -> None:
    folder, paths = make_paths(tmp_path, 1_000_000)
    np.save(tmp_path / "labels.npy", np.arange(1_000_000) % 7)
    labels = {"LABEL_SOURCES": ["disk_filelist"], "LABEL_PATHS": [str(tmp_path / "labels.npy")]}
    for keys in ({"LABEL_TYPE": "sample_index"}, labels, {**labels, "DATA_LIMIT": 900_000}):
        for source, path in zip(SOURCES, (folder, paths), strict=True):
            data = opened(source, path, **keys)
            assert len(pickle.dumps(data)) < 60_000  # most of it the names of 1000 classes
            other = pickle.loads(pickle.dumps(data))
            assert other.name(899_999) == data.name(899_999)
            assert other.labels[0][-1] == data.labels[0][-1]
