"""The check of a run's data, as facts of its page."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image

from sslengine.config.sections import read
from sslengine.data.loading.dataset import SSLDataset
from sslengine.data.options import DataOptions
from sslengine.report import data_check
from sslengine.report.content import Fact
from sslengine.report.data_check import LEAK, find_facts
from sslengine.report.parts import Album
from tests.config.recipes import resolved
from tests.report.image_runs import EACH, on_disk, write_classes


def _facts(album: Album, **changes: Any) -> dict[str, Fact]:
    data = read(resolved(**changes).config, DataOptions)
    datasets = {
        split: SSLDataset(getattr(data, split), split, 0)
        for split in ("TRAIN", "TEST")
        if getattr(data, split).DATA_SOURCES
    }
    return {each.what: each for each in find_facts(datasets, album)}


def test_what_is_odd_is_counted_and_shown(tmp_path: Path) -> None:
    images = write_classes(tmp_path / "images", EACH)
    test = write_classes(tmp_path / "test", 2, first=1)
    shutil.copy(images / "red" / "0.png", images / "red" / "twin.png")
    shutil.copy(images / "blue" / "3.png", test / "red" / "known.png")
    (test / "red" / "broken.png").write_bytes(b"no image")
    Image.new("RGBA", (20, 20), (1, 2, 3, 40)).save(images / "blue" / "glass.png")
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (30, 20), "green").save(images / "blue" / "turned.jpg", exif=exif)
    album = Album()
    found = _facts(album, **on_disk(images), **on_disk(test, "TEST"))
    thumbs = album.join()
    assert thumbs is not None

    def shown(what: str) -> list[str]:
        return [thumbs.names[place] for place in found[what].thumbs]

    assert found["training images"].value == "19"
    assert found["test images"].value == "6"
    assert found["training images: largest class"].value == "blue, 10 images"
    assert found["training images: opened"].value == "19"
    assert found["training images: copies"].value == "1"
    assert shown("training images: copies") == ["red/twin.png", "red/0.png"]
    assert shown("training images: transparent") == ["blue/glass.png"]
    assert shown("training images: rotated") == ["blue/turned.jpg"]
    assert found["test images: unreadable"].value == "1"
    assert "broken.png" in found["test images: unreadable"].advice
    assert "small" in found["training images: shorter side"].advice
    assert found["test images: shorter side"].advice == ""  # it is advice for training
    leak = found["test images that are training images"]
    assert (leak.value, leak.advice) == ("1", LEAK)
    assert shown(leak.what) == ["red/known.png"]


def test_of_many_images_some_are_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_check, "OPENED", 24)
    found = _facts(Album(), **on_disk(write_classes(tmp_path / "images", 15)))
    assert found["training images: opened"].value == "24"
    assert found["training images"].value == "30"


def test_without_classes_none_are_counted(tmp_path: Path) -> None:
    Image.new("RGB", (20, 20)).save(tmp_path / "one.png")
    found = _facts(Album(), **on_disk(tmp_path))
    assert "training images: classes" not in found
    assert found["training images: shorter side"].value == "20 to 20, median 20"


@pytest.mark.parametrize(
    ("size", "count"), [((32, 32), 500), ((1000, 1000), 100), ((4000, 3000), 12)]
)
def test_of_large_images_fewer_are_opened(size: tuple[int, int], count: int) -> None:
    source = SimpleNamespace(image=lambda row: Image.new("RGB", size))
    assert data_check.choose_number(source, range(5000)) == count
