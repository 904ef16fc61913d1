"""What tells one set of images from another, at a cost that does not grow with their number."""

from __future__ import annotations

import os
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from sslengine.data import fingerprint as module
from sslengine.data.fingerprint import NAMED, READ, fingerprint
from sslengine.data.loading.dataset import SSLDataset
from sslengine.data.options import split_options
from tests.data.pictures import write_picture


def of(place: Path, source: str = "disk_folder") -> dict[str, Any]:
    keys = {"DATA_SOURCES": [source], "DATA_PATHS": [str(place)], "LABEL_TYPE": "sample_index"}
    return fingerprint(SSLDataset(split_options(**keys), "TRAIN", 0), [str(place)])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(8):
        write_picture(tmp_path / "images" / "ab"[number % 2] / f"{number}.png", number)
    return tmp_path / "images"


def test_names_sizes_and_bytes(folder: Path, tmp_path: Path) -> None:
    before = of(folder)
    assert (before["images"], before["named"], before["read"]) == (8, 8, 8)
    assert before["bytes_read"] == sum(each.stat().st_size for each in folder.rglob("*.png"))
    moved = tmp_path / "elsewhere"
    shutil.copytree(folder, moved)
    os.utime(moved / "a" / "0.png", (0, 0))
    assert of(moved) == before

    content = bytearray((moved / "a" / "0.png").read_bytes())
    content[-20] ^= 1  # as large as before
    (moved / "a" / "0.png").write_bytes(content)
    after = of(moved)
    assert (after["names"], after["bytes_read"]) == (before["names"], before["bytes_read"])
    assert after["contents"] != before["contents"]
    assert after["fingerprint"] != before["fingerprint"]

    (folder / "a" / "0.png").rename(folder / "a" / "00.png")
    renamed = of(folder)
    assert renamed["contents"] == before["contents"]
    assert renamed["names"] != before["names"]
    assert renamed["fingerprint"] != before["fingerprint"]


def test_pixels_of_an_array(tmp_path: Path) -> None:
    images = np.zeros((5, 4, 4, 3), np.uint8)
    prints = []
    for value in (0, 0, 1):
        images[3, 0, 0, 0] = value
        np.save(tmp_path / "a.npy", images)
        prints.append(of(tmp_path / "a.npy", "array_file")["fingerprint"])
    assert prints[0] == prints[1] != prints[2]


def test_an_image_that_cannot_be_read(folder: Path) -> None:
    before = of(folder)
    (folder / "a" / "0.png").unlink()
    (folder / "a" / "0.png").symlink_to(folder / "gone.png")
    assert of(folder)["contents"] != before["contents"]


class Many:
    """Ten million images; which of them are asked for is noted."""

    root = ""

    def __init__(self, changed: int | None = None) -> None:
        self.changed, self.named, self.opened = changed, 0, []  # type: ignore[var-annotated]

    def relative_path(self, row: int) -> str:
        self.named += 1
        return f"{row + (self.changed is not None and row >= self.changed):08}.jpg"

    def image(self, row: int) -> np.ndarray:
        self.opened.append(row)
        return np.full((1, 1, 3), row % 251, np.uint8)


class Dataset:
    def __init__(self, source: Many, count: int) -> None:
        self.sources, self.rows = [source], range(count)

    def __len__(self) -> int:
        return len(self.rows)


def test_its_cost_does_not_grow_with_the_number_of_images() -> None:
    count = 10_000_000
    source = Many()
    found = fingerprint(Dataset(source, count), [])  # type: ignore[arg-type]
    assert (source.named, len(source.opened)) == (NAMED, READ) == (found["named"], found["read"])
    assert source.opened[0] == 0
    assert {*np.diff(source.opened)} <= {count // READ, count // READ + 1}


def test_a_file_that_is_added_changes_it_wherever_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """It moves all that follow."""
    monkeypatch.setattr(module, "NAMED", 50)
    before = fingerprint(Dataset(Many(), 1000), [])["names"]  # type: ignore[arg-type]
    for place in (1, 333, 979):
        after = fingerprint(Dataset(Many(place), 1001), [])["names"]  # type: ignore[arg-type]
        assert after != before


def as_tar(folder: Path, place: Path) -> Path:
    with tarfile.open(place / "shard-0.tar", "w") as tar:
        for file in sorted(folder.rglob("*.png")):
            tar.add(file, file.name)
    return place / "shard-0.tar"


def as_array(folder: Path, place: Path) -> Path:
    files = sorted(folder.rglob("*.png"))
    np.save(place / "a.npy", np.stack([np.asarray(Image.open(each)) for each in files]))
    return place / "a.npy"


def as_list(folder: Path, place: Path) -> Path:
    rows = [str(each) for each in sorted(shutil.copytree(folder, place / "all").rglob("*.png"))]
    (place / "lists").mkdir()
    (place / "lists" / "list.csv").write_text("\n".join(["path", *rows, ""]))
    return place / "lists" / "list.csv"


def as_numpys_list(folder: Path, place: Path) -> Path:
    rows = [str(each) for each in sorted(shutil.copytree(folder, place / "all").rglob("*.png"))]
    np.save(place / "list.npy", rows)
    return place / "list.npy"


@pytest.mark.parametrize(
    ("source", "make"),
    [("webdataset", as_tar), ("array_file", as_array), ("csv_filelist", as_list),
     ("disk_filelist", as_numpys_list)],
)  # fmt: skip
def test_where_any_source_is_makes_no_difference(
    source: str, make: Callable[[Path, Path], Path], folder: Path, tmp_path: Path
) -> None:
    prints = []
    for name in ("here", "over/there"):
        (tmp_path / name).mkdir(parents=True)
        prints.append(of(make(folder, tmp_path / name), source))
    assert prints[0] == prints[1]
    (folder / "a" / "0.png").rename(folder / "a" / "00.png")
    (tmp_path / "third").mkdir()
    renamed = of(make(folder, tmp_path / "third"), source)["names"]
    assert (renamed == prints[0]["names"]) == (source == "array_file")  # it has no names


def test_a_folder_that_is_written_in_another_way(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = of(folder)
    monkeypatch.chdir(folder.parent)
    for written in ("images", "./images/", "../" + folder.parent.name + "//images"):
        keys = {"DATA_SOURCES": ["disk_folder"], "DATA_PATHS": [written]}
        options = split_options(**keys, LABEL_TYPE="sample_index")
        assert fingerprint(SSLDataset(options, "TRAIN", 0), [written]) == before
