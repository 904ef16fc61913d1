from __future__ import annotations

import json
import logging
import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from sslengine.data.options import SplitOptions
from sslengine.data.sources.image_cache import MANIFEST, ImageCacheSource
from sslengine.errors import DataError


def write_cache(root: Path, **more: object) -> Path:
    """Three images in parts of two; the second takes no bytes."""
    root.mkdir()
    for number, (content, starts) in enumerate([(b"first", [0, 5, 5]), (b"third", [0, 5])]):
        (root / f"part-0000{number}.bin").write_bytes(content)
        np.save(root / f"part-0000{number}.npy", np.array(starts))
    told = {"version": 1, "of": "/data", "changes": "shorter side 256, JPEG of quality 90"}
    counts = {"images": 3, "images_in_a_part": 2, "not_resized": 0, "unreadable": 1}
    (root / MANIFEST).write_text(json.dumps({**told, **counts, **more}))
    return root


def cache(root: Path) -> ImageCacheSource:
    return ImageCacheSource(SplitOptions(DATA_PATHS=[str(root)]), "TRAIN")


def test_bytes_by_number(tmp_path: Path) -> None:
    found = cache(write_cache(tmp_path / "cache"))
    for source in (found, pickle.loads(pickle.dumps(found))):
        assert [source.encoded(index) for index in range(len(source))] == [b"first", b"", b"third"]
    assert found.path(2) == f"image 2 of the cache {tmp_path / 'cache'}"


def test_labels(tmp_path: Path) -> None:
    root = write_cache(tmp_path / "cache")
    with pytest.raises(DataError, match="has no labels"):
        cache(root).labels()
    np.save(root / "labels.npy", [2, 0, 1])
    assert (cache(root).labels().tolist(), cache(root).label(0), cache(root).num_classes) == (
        [2, 0, 1],
        2,
        3,
    )


def test_what_differs_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        cache(write_cache(tmp_path / "cache"))
    assert caplog.messages == [
        "config.DATA.TRAIN.DATA_PATHS.0: these are copies of /data, not the images themselves: "
        "shorter side 256, JPEG of quality 90. 0 of 3 were smaller and keep their size, "
        "1 could not be read."
    ]


def test_what_is_not_whole_is_not_read(tmp_path: Path) -> None:
    root = write_cache(tmp_path / "cache")
    os.truncate(root / "part-00001.bin", 3)
    with pytest.raises(EOFError, match=r"the cache ends within it: 3 of 5 bytes"):
        cache(root).encoded(2)
    with pytest.raises(DataError, match=r"the image cache .*gone is not there"):
        cache(tmp_path / "gone")
    with pytest.raises(DataError, match=r"the image cache .* is none: the folder has no"):
        cache(tmp_path)
    with pytest.raises(DataError, match=r"of another version; make it again"):
        cache(write_cache(tmp_path / "old", version=0))
