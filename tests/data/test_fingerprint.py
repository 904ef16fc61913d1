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
from sslengine.data.fingerprint import NAMED, READ, hash_here, identify
from sslengine.data.loading.dataset import SSLDataset
from sslengine.data.options import SplitOptions, split_options
from sslengine.data.sources.base import DataSource
from tests.data.pictures import write_picture
from tests.data.sources.every import DRAWN, EVERY, INSTALLED, OF_PICTURES, mnist

# dill, by which `datasets` makes its fingerprints, of types of pyarrow.
pytestmark = pytest.mark.filterwarnings("ignore:Cannot .*MonthDayNano")


def of(place: Path, source: str = "disk_folder") -> dict[str, Any]:
    keys = {"DATA_SOURCES": [source], "DATA_PATHS": [str(place)], "LABEL_TYPE": "sample_index"}
    return identify(SSLDataset(split_options(**keys), "TRAIN", 0), [str(place)])


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
    stream = None

    def __init__(self, source: Many, count: int) -> None:
        self.sources, self.rows = [source], range(count)

    def __len__(self) -> int:
        return len(self.rows)


def test_its_cost_does_not_grow_with_the_number_of_images() -> None:
    count = 10_000_000
    source = Many()
    found = identify(Dataset(source, count), [])  # type: ignore[arg-type]
    assert (source.named, len(source.opened)) == (NAMED, READ) == (found["named"], found["read"])
    assert source.opened[0] == 0
    assert {*np.diff(source.opened)} <= {count // READ, count // READ + 1}


def test_a_file_that_is_added_changes_it_wherever_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """It moves all that follow."""
    monkeypatch.setattr(module, "NAMED", 50)
    before = identify(Dataset(Many(), 1000), [])["names"]  # type: ignore[arg-type]
    for place in (1, 333, 979):
        after = identify(Dataset(Many(place), 1001), [])["names"]  # type: ignore[arg-type]
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
        assert identify(SSLDataset(options, "TRAIN", 0), [written]) == before


# ---- hash_here


def here(source: str, place: Path, **keys: Any) -> str:
    given = {"DATA_SOURCES": [source], "DATA_PATHS": [str(place)], "LABEL_TYPE": "sample_index"}
    return hash_here(SSLDataset(split_options(**{**given, **keys}), "TRAIN", 0))


def later(file: Path) -> None:
    """As if it were written again, with as many bytes."""
    found = file.stat()
    os.utime(file, ns=(found.st_atime_ns, found.st_mtime_ns + 1))


# Where the images of `every.py` lie, and what lies beside some of them.
FILES = {
    "disk_folder": ("img/0/00.png", ""),
    "disk_filelist": ("img/0/00.png", "list.npy"),
    "csv_filelist": ("img/0/00.png", "list.csv"),
    "disk_roi_annotations": ("img/0/00.png", ""),
    "webdataset": ("shards/1.tar", ""),
    "array_file": ("images.npz", ""),
    "huggingface_dataset": ("rows/data-00000-of-00001.arrow", "rows/state.json"),
    "video": ("mov/0/00.mov", ""),
    "torchvision_dataset": ("MNIST/raw/train-images-idx3-ubyte", ""),
}


def test_each_source_that_reads_files_knows_them() -> None:
    assert {*FILES} == {*EVERY} - {*DRAWN}


@pytest.mark.parametrize("source", [each for each in FILES if each in INSTALLED])
def test_a_file_that_is_written_again_gives_another_hash(source: str, tmp_path: Path) -> None:
    keys = {"DATASET_NAMES": ["MNIST"]} if source == "torchvision_dataset" else {}
    place = {**OF_PICTURES, "torchvision_dataset": mnist}[source](tmp_path)
    before = here(source, place, **keys)
    images, beside = FILES[source]
    if beside:
        later(tmp_path / beside)
    assert here(source, place, **keys) == before
    later(tmp_path / images)
    assert here(source, place, **keys) != before


def test_the_files_of_other_images_do_not_count(tmp_path: Path) -> None:
    shards, keys = OF_PICTURES["webdataset"](tmp_path), {"DATA_LIMIT": 1}
    before = here("webdataset", shards, **keys)
    changed = []
    for file in sorted(shards.iterdir()):
        later(file)
        changed.append(here("webdataset", shards, **keys) != before)
        before = here("webdataset", shards, **keys)
    assert sum(changed) == 1


def test_other_labels_give_another_hash(tmp_path: Path) -> None:
    place = OF_PICTURES["csv_filelist"](tmp_path)
    keys = {"LABEL_TYPE": "standard", "LABEL_SOURCES": ["csv_filelist"]}
    before = here("csv_filelist", place, **keys)
    place.write_text(place.read_text().replace(",2", ",3"))
    assert here("csv_filelist", place, **keys) != before


def test_shards_of_a_stream(tmp_path: Path) -> None:
    shards = OF_PICTURES["webdataset"](tmp_path)
    before = here("webdataset_stream", shards, LENGTH=4)
    assert here("webdataset_stream", shards, LENGTH=4) == before
    later(shards / "2.tar")
    assert here("webdataset_stream", shards, LENGTH=4) != before


class OfAUser(DataSource):
    """It does not say which files it reads. One of them has the image's name."""

    grey = 3

    def __init__(self, options: SplitOptions, split: str, position: int = 0) -> None:
        super().__init__(options, split, position)
        self.files = [options.DATA_PATHS[position]]

    def __len__(self) -> int:
        return 3

    def image(self, index: int) -> Image.Image:
        return Image.new("RGB", (4, 4), (index, self.grey, 0))

    def path(self, index: int) -> str:
        return self.files[0] if index == 1 else super().path(index)


def test_the_pixels_of_a_source_that_does_not_know_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, source = write_picture(tmp_path / "all.png", 0), f"{__name__}:OfAUser"
    hashes = [here(source, file), here(source, file)]
    assert len({*hashes}) == 1
    monkeypatch.setattr(OfAUser, "grey", 4)
    hashes.append(here(source, file))
    later(file)
    hashes.append(here(source, file))
    assert len({*hashes}) == 3
