from __future__ import annotations

import pickle

import numpy as np
import pytest

from sslengine.data.shared import SharedArray, SharedStrings
from sslengine.data.shared_paths import SharedPaths, by_folder, path_arrays

PATHS = [
    b"/a/1.jpg",
    b"/a/2.jpg",
    b"/b/c/1.jpg",
    b"/a/3.jpg",
    b"bare.jpg",
    b"/top.jpg",
    b"/b/",
    b"",
]


def shared(paths: list[bytes]) -> SharedPaths:
    arrays = {
        name: SharedArray.of(values) for name, values in path_arrays(by_folder(paths)).items()
    }
    names, folders = (
        SharedStrings(arrays[name], arrays[f"{name}_starts"]) for name in ("names", "folders")
    )
    return SharedPaths(names, folders, arrays["folder_of"])


def test_paths_come_out_as_they_went_in() -> None:
    paths = shared(PATHS)
    assert list(paths) == PATHS
    assert paths[-3] == PATHS[-3]
    assert paths[1:4] == PATHS[1:4]
    with pytest.raises(IndexError):
        paths[len(PATHS)]
    assert list(pickle.loads(pickle.dumps(paths))) == PATHS


def test_each_folder_is_kept_once() -> None:
    many = [b"/some/long/folder/%d.jpg" % number for number in range(1000)]
    draw = np.random.default_rng(0)
    arrays = path_arrays(by_folder([many[each] for each in draw.permutation(1000)]))
    assert arrays["folders"].tobytes() == b"/some/long/folder/"


def test_no_paths() -> None:
    assert list(shared([])) == []


def test_it_goes_to_a_worker_small() -> None:
    paths = shared([b"/%d/%d.jpg" % (number % 5000, number) for number in range(20_000)])
    assert len(pickle.dumps(paths)) < 1500
