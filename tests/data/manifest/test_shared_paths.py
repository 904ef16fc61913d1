from __future__ import annotations

import pickle

import numpy as np
import pytest

from sslengine.data.manifest import shared_paths
from sslengine.data.manifest.shared import SharedArray, SharedStrings
from sslengine.data.manifest.shared_paths import SharedPaths, by_folder, path_arrays

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
    parts = (
        SharedStrings(arrays[name], arrays[f"{name}_starts"])
        for name in ("names", "begins", "ends")
    )
    return SharedPaths(*parts, arrays["kind_of"])


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
    assert arrays["begins"].tobytes() == b"/some/long/folder/"


def many_in(folder: bytes) -> list[bytes]:
    return [b"%sn014_%04d.JPEG" % (folder, number) for number in range(20)]


def test_what_the_names_of_a_folder_have_in_common_is_kept_once() -> None:
    arrays = path_arrays(by_folder([*many_in(b"/a/"), *many_in(b"/b/")]))
    assert arrays["begins"].tobytes() == b"/a/n014_00/b/n014_00"
    assert arrays["ends"].tobytes() == b".JPEG" * 2
    assert arrays["names"].tobytes() == b"".join(b"%02d" % number for number in range(20)) * 2


@pytest.mark.parametrize(
    "names",
    [
        many_in(b"/a/"),
        [*many_in(b"/a/"), *many_in(b"/b/")[:3], *many_in(b"/a/")],
        [b"/a/" + b"x" * number for number in range(30)],  # beginnings that are whole names
        [b"/a/" + b"x" * number + b"yx" for number in range(30)],
        [b"/a/same"] * 30,
        [b"\xff\x00%d" % number for number in range(30)],
    ],
)
def test_shortened_names_come_out_as_they_went_in(names: list[bytes]) -> None:
    assert list(shared(names)) == names


@pytest.mark.parametrize(("folders", "kind"), [(3, np.uint8), (300, np.uint16)])
def test_the_numbers_of_folders_are_as_small_as_they_can_be(folders: int, kind: type) -> None:
    names = [b"/%d/%d" % (number % folders, number) for number in range(2 * folders)]
    assert path_arrays(by_folder(names))["kind_of"].dtype == kind
    assert list(shared(names)) == names


def test_a_large_folder_is_looked_at_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_paths, "AT_ONCE", 17)
    names = [b"/a/%04d.jpg" % number for number in range(100)]
    assert list(shared(names)) == names


def test_no_paths() -> None:
    assert list(shared([])) == []


def test_it_goes_to_a_worker_small() -> None:
    paths = shared([b"/%d/%d.jpg" % (number % 5000, number) for number in range(20_000)])
    assert len(pickle.dumps(paths)) < 1500
