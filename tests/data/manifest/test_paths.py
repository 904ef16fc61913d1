from __future__ import annotations

import json
import os
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml
from PIL import Image

from sslengine.config.sections import read
from sslengine.data.manifest import paths
from sslengine.data.manifest.paths import (
    CATALOGUE_VARIABLES,
    Located,
    copy_to_disk,
    data_path,
    label_path,
)
from sslengine.data.options import DataOptions, SplitOptions
from sslengine.errors import DataError
from sslengine.launch.cli import resolve_all
from sslengine.registry import DATA_SOURCES
from tests.config.recipes import recipe, resolved
from tests.registries import as_before

CATALOGUE = {
    "birds": {
        "train": ["/birds/train", "/birds/train.npy"],
        "val": ["/birds/val", "/birds/val.npy"],
    },
    "bees": {"train": ["/bees"], "test": ["/bees/test"]},
}


@pytest.fixture
def catalogue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("VISSL_DATASET_CATALOG_PATH", raising=False)
    path = tmp_path / "catalogue.json"
    path.write_text(json.dumps(CATALOGUE))
    monkeypatch.setenv("SSLENGINE_DATASET_CATALOG", str(path))
    return path


def test_given_paths_win(catalogue: Path) -> None:
    options = SplitOptions(DATASET_NAMES=["birds"], DATA_PATHS=["/mine"], LABEL_PATHS=["/l.npy"])
    assert data_path(options, "TRAIN", 0) == Located(
        Path("/mine"), "config.DATA.TRAIN.DATA_PATHS.0"
    )
    assert label_path(options, "TRAIN", 0).path == Path("/l.npy")


def test_names_are_looked_up(catalogue: Path) -> None:
    options = SplitOptions(DATASET_NAMES=["bees", "birds"])
    assert data_path(options, "TRAIN", 1) == Located(
        Path("/birds/train"), f"{catalogue}, birds.train"
    )
    assert data_path(options, "TEST", 1).path == Path("/birds/val")
    assert data_path(options, "TEST", 0).path == Path("/bees/test")
    assert label_path(options, "TEST", 1).path == Path("/birds/val.npy")
    with pytest.raises(DataError, match=r"no label file of val or test for 'bees'"):
        label_path(options, "TEST", 0)


def test_vissl_variable_and_default_file(
    catalogue: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = SplitOptions(DATASET_NAMES=["birds"])
    monkeypatch.setenv("VISSL_DATASET_CATALOG_PATH", str(catalogue))
    monkeypatch.delenv("SSLENGINE_DATASET_CATALOG")
    assert data_path(options, "TRAIN", 0).path == Path("/birds/train")
    monkeypatch.delenv("VISSL_DATASET_CATALOG_PATH")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "dataset_catalog.json").write_text(
        json.dumps({"birds": {"train": ["/here"]}})
    )
    assert data_path(options, "TRAIN", 0).path == Path("/here")


def test_without_a_catalogue_the_way_out_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("SSLENGINE_DATASET_CATALOG", "VISSL_DATASET_CATALOG_PATH"):
        monkeypatch.delenv(name, raising=False)
    options = SplitOptions(DATASET_NAMES=["birds"])
    with pytest.raises(DataError, match=r"configs/dataset_catalog.json, which does not exist"):
        data_path(options, "TRAIN", 0)
    monkeypatch.setenv("SSLENGINE_DATASET_CATALOG", "gone.json")
    with pytest.raises(DataError, match=r"gone.json, which does not exist"):
        data_path(options, "TRAIN", 0)
    with pytest.raises(DataError, match=r"DATA_PATHS.0: nothing says where the data is"):
        data_path(SplitOptions(), "TRAIN", 0)


def test_a_catalogue_is_found_where_vissl_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """configs/config/dataset_catalog.json, with --config-dir configs."""
    for name in CATALOGUE_VARIABLES:
        monkeypatch.setenv(name, "")
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "theirs" / "config" / "dataset_catalog.json"
    file.parent.mkdir(parents=True)
    (file.parent / "mine.yaml").write_text(
        f"# @package _global_\n{yaml.safe_dump({'config': recipe()})}"
    )
    file.write_text(json.dumps({"birds": {"train": ["/theirs"]}}))
    options = SplitOptions(DATASET_NAMES=["birds"])
    resolve_all(["config=mine"], [str(file.parents[1])])
    assert data_path(options, "TRAIN", 0) == Located(Path("/theirs"), f"{file}, birds.train")
    resolve_all(["config=quickstart/simclr"], [])  # another config: nothing of it is left
    with pytest.raises(DataError, match="does not exist"):
        data_path(options, "TRAIN", 0)


def test_the_pages_source_takes_a_name_of_the_catalogue(
    catalogue: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "data_sources.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page.partition("## A custom source")[2], re.S)[:1]
    (tmp_path / "tiles.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    Image.new("RGB", (96, 64)).save(tmp_path / "slide.png")
    catalogue.write_text(json.dumps({"slides": {"train": [str(tmp_path / "slide.png")]}}))
    data = {"DATASET_NAMES": ["slides"], "LABEL_TYPE": "zero", "DATA_LIMIT": -1}
    changes = {f"DATA__TRAIN__{key}": value for key, value in data.items()}
    with as_before(DATA_SOURCES):
        run = resolved(PLUGINS=["tiles"], DATA__TRAIN__DATA_SOURCES=["tiles"], **changes)
        split = read(run.config, DataOptions).TRAIN
        source = DATA_SOURCES.get("tiles")(split, "TRAIN")
        assert len(source) == 6
        assert source.image(5).size == (32, 32)


WHERE = "config.DATA.TRAIN.DATA_PATHS.0"


@pytest.fixture
def images(tmp_path: Path) -> Path:
    folder = tmp_path / "slow" / "train" / "cats"
    folder.mkdir(parents=True)
    (folder / "1.png").write_bytes(b"image")
    return folder.parent


def test_a_folder_is_copied_once(images: Path, tmp_path: Path) -> None:
    copy = copy_to_disk(images, tmp_path / "fast", WHERE)
    assert (copy / "cats" / "1.png").read_bytes() == b"image"
    assert copy.name == "train"
    (copy / "kept").touch()
    assert copy_to_disk(images, tmp_path / "fast", WHERE) == copy
    assert (copy / "kept").exists()


def test_data_of_the_same_name_lie_beside_each_other(images: Path, tmp_path: Path) -> None:
    other = tmp_path / "other" / "train"
    other.mkdir(parents=True)
    copies = [copy_to_disk(each, tmp_path / "fast", WHERE) for each in (images, other)]
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
            copy_to_disk(images, tmp_path / "fast", WHERE)
    assert os.listdir(copy_to_disk(images, tmp_path / "fast", WHERE)) == ["cats"]


def test_the_processes_of_a_node_take_turns(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = []
    make = paths._copy
    monkeypatch.setattr(paths, "_copy", lambda *given: (copied.append(1), make(*given)))
    with ThreadPoolExecutor(8) as pool:
        copies = list(pool.map(lambda _: copy_to_disk(images, tmp_path / "fast", WHERE), range(8)))
    assert len(set(copies)) == len(copied) == 1


def test_a_folder_that_cannot_be_made(images: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"DATA_PATHS\.0: could not copy .*COPY_DESTINATION_DIR"):
        copy_to_disk(images, tmp_path / "file", WHERE)


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
