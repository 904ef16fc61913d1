from __future__ import annotations

from pathlib import Path

import numpy as np
import PIL.Image
import pytest

from sslengine.monitor.images import ImageWriter
from sslengine.monitor.writers import Record

GREY = np.arange(6, dtype=np.uint8).reshape(2, 3)


def _record(iteration: int, split: str = "train") -> Record:
    return Record("step", iteration, 0, split, {}, images={"views/first": GREY})


def test_each_image_is_a_file(tmp_path: Path) -> None:
    writer = ImageWriter(tmp_path / "images")
    writer.write(_record(4))
    writer.write(_record(4, "test"))
    for path in ("views/first/4.png", "test/views/first/4.png"):
        assert np.array_equal(np.asarray(PIL.Image.open(tmp_path / "images" / path)), GREY)


def test_a_record_without_images_makes_no_folder(tmp_path: Path) -> None:
    ImageWriter(tmp_path / "images").write(Record("step", 1, 0, "train", {"loss": 1.0}))
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_cannot_be_written_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "images").write_text("a file where the folder should be")
    writer = ImageWriter(tmp_path / "images")
    for iteration in (1, 2):
        writer.write(_record(iteration))
    assert caplog.text.count("could not be written") == 1


def test_new_images_are_named_once_to_be_synced(tmp_path: Path) -> None:
    writer = ImageWriter(tmp_path / "images")
    writer.write(_record(4))
    assert writer.unsynced() == [tmp_path / "images" / "views" / "first" / "4.png"]
    assert writer.unsynced() == []
