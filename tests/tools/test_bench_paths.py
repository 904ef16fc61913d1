from __future__ import annotations

import multiprocessing
import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from sslengine.data.loading.dataset import SSLDataset
from sslengine.data.options import SplitOptions
from tools.perf_measurement import bench_paths
from tools.perf_measurement.bench_paths import make_paths, mappings, memory, processes

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
    event, here = CONTEXT.Event(), os.getpid()
    before, alone = set(processes(here)), memory(here)
    child = CONTEXT.Process(target=event.wait)
    child.start()
    assert here in before
    assert set(processes(here)) - before == {child.pid}
    # Pages that both share are counted once.
    assert memory(here) < 1.5 * alone + 50
    event.set()
    child.join()
    assert child.pid not in processes(here)


def test_a_file_that_other_programs_map_counts_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    kib = {
        1: [("library", "Rss:", 2048), ("library", "Pss:", 512)],
        2: [
            ("library", "Rss:", 1024),
            ("library", "Pss:", 256),
            ("", "Rss:", 1024),
            ("", "Pss:", 512),
        ],
        3: [("", "Rss:", 1024), ("", "Pss:", 512)],
    }
    monkeypatch.setattr(bench_paths, "processes", lambda root: [1, 2, 3])
    monkeypatch.setattr(bench_paths, "mappings", kib.get)
    assert memory(1) == 2 + 1


def test_mappings_are_what_the_kernel_sums_up() -> None:
    found = sum(kib for _, key, kib in mappings(os.getpid()) if key == "Pss:")
    told = Path("/proc/self/smaps_rollup").read_text().split("Pss:")[1].split()[0]
    assert found == pytest.approx(int(told), rel=0.1)


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
