from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from sslengine.data.decode.decoding import Decoder, open_image
from sslengine.data.decode.files import kind_of, read_file
from sslengine.data.options import SplitOptions
from sslengine.data.sources.disk import FileListSource
from sslengine.errors import DataError


def test_a_regular_file_or_a_link_to_one(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"content")
    (tmp_path / "b").symlink_to("a")
    assert read_file(tmp_path / "a") == read_file(str(tmp_path / "b")) == b"content"
    assert kind_of(tmp_path / "b") == kind_of(tmp_path / "none") == ""
    with pytest.raises(FileNotFoundError):
        read_file(tmp_path / "none")


@pytest.mark.parametrize(("kind", "told"), [("fifo", "FIFO"), ("device", "device")])
def test_whatever_would_never_end(tmp_path: Path, kind: str, told: str) -> None:
    path = tmp_path / "image.png"
    os.mkfifo(path) if kind == "fifo" else path.symlink_to("/dev/zero")
    with pytest.raises(OSError, match=f"not read, for it is a {told}"):
        read_file(path)
    with pytest.raises(DataError, match=f"image.png cannot be read as an image: .* a {told}"):
        open_image(path, Decoder.build(SplitOptions(), "TRAIN"))
    listed = tmp_path / "files.npy"
    np.save(listed, np.array([str(path)]))
    source = FileListSource(SplitOptions(DATA_PATHS=[str(listed)]), "TRAIN")
    with pytest.raises(OSError, match=told):
        source.encoded(0)  # at once, whatever READ_RETRIES says
    with pytest.raises(DataError, match=f"there is no file .*image.png: it is a {told}"):
        FileListSource(SplitOptions(DATA_PATHS=[str(path)]), "TRAIN")


def test_a_folder(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="for it is a folder"):
        read_file(tmp_path)
