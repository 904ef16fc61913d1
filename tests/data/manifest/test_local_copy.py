from __future__ import annotations

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sslengine.data.manifest import local_copy as module
from sslengine.data.manifest.local_copy import local_copy
from sslengine.data.options import SplitOptions
from sslengine.data.sources.paths import data_path
from sslengine.errors import DataError

WHERE = "config.DATA.TRAIN.DATA_PATHS.0"


@pytest.fixture
def images(tmp_path: Path) -> Path:
    folder = tmp_path / "slow" / "train" / "cats"
    folder.mkdir(parents=True)
    (folder / "1.png").write_bytes(b"image")
    return folder.parent


def test_a_folder_is_copied_once(images: Path, tmp_path: Path) -> None:
    copy = local_copy(images, tmp_path / "fast", WHERE)
    assert (copy / "cats" / "1.png").read_bytes() == b"image"
    assert copy.name == "train"
    (copy / "kept").touch()
    assert local_copy(images, tmp_path / "fast", WHERE) == copy
    assert (copy / "kept").exists()


def test_data_of_the_same_name_lie_beside_each_other(images: Path, tmp_path: Path) -> None:
    other = tmp_path / "other" / "train"
    other.mkdir(parents=True)
    copies = [local_copy(each, tmp_path / "fast", WHERE) for each in (images, other)]
    assert os.listdir(copies[0]) == ["cats"]
    assert os.listdir(copies[1]) == []


def test_what_a_killed_copy_left_is_not_taken_for_the_data(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(original: Path, copy: Path) -> None:
        copy.mkdir()
        (copy / "half").touch()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copytree", killed)
        with pytest.raises(KeyboardInterrupt):
            local_copy(images, tmp_path / "fast", WHERE)
    assert os.listdir(local_copy(images, tmp_path / "fast", WHERE)) == ["cats"]


def test_the_processes_of_a_node_take_turns(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = []
    make = module._make
    monkeypatch.setattr(module, "_make", lambda *given: (copied.append(1), make(*given)))
    with ThreadPoolExecutor(8) as pool:
        copies = list(pool.map(lambda _: local_copy(images, tmp_path / "fast", WHERE), range(8)))
    assert len(set(copies)) == len(copied) == 1


def test_a_disk_without_room(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(9, 9, 1))
    with pytest.raises(DataError, match=r"0\.0 GiB left.*COPY_DESTINATION_DIR"):
        local_copy(images, tmp_path / "fast", WHERE)


def test_a_folder_that_cannot_be_made(images: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"DATA_PATHS\.0: could not copy .*COPY_DESTINATION_DIR"):
        local_copy(images, tmp_path / "file", WHERE)


def test_the_source_reads_the_copy(images: Path, tmp_path: Path) -> None:
    fast = str(tmp_path / "fast")
    options = SplitOptions(
        DATA_PATHS=[str(images)], COPY_TO_LOCAL_DISK=True, COPY_DESTINATION_DIR=fast
    )
    located = data_path(options, "TRAIN", 0)
    assert str(located.path).startswith(fast)
    assert located.path.name == "train"
    assert located.where == WHERE
    options.DATA_PATHS = [str(tmp_path / "missing")]  # for the source to tell
    assert data_path(options, "TRAIN", 0).path == tmp_path / "missing"


def test_it_needs_a_place() -> None:
    problems = list(SplitOptions(COPY_TO_LOCAL_DISK=True).check())
    assert problems == [
        "COPY_DESTINATION_DIR: COPY_TO_LOCAL_DISK needs a folder on a disk of each node."
    ]
