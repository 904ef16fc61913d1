from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from PIL import Image

from sslengine.config.sections import read
from sslengine.data.options import DataOptions, SplitOptions
from sslengine.data.sources.paths import CATALOGUE_VARIABLES, Located, data_path, label_path
from sslengine.errors import DataError
from sslengine.launch.cli import resolve_all
from sslengine.registry import DATA_SOURCES
from tests.config.recipes import recipe, resolved

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
    with pytest.raises(DataError, match=r"no val or test entry with a label file for 'bees'"):
        label_path(options, "TEST", 0)


def test_an_unknown_name_gets_the_nearest(catalogue: Path) -> None:
    with pytest.raises(DataError, match=r"DATASET_NAMES.0: .*no 'bird'. Did you mean 'birds'"):
        data_path(SplitOptions(DATASET_NAMES=["bird"]), "TRAIN", 0)


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
    with pytest.raises(
        DataError, match=r"configs/dataset_catalog.json does not exist.*DATA_PATHS=\["
    ):
        data_path(options, "TRAIN", 0)
    monkeypatch.setenv("SSLENGINE_DATASET_CATALOG", "gone.json")
    with pytest.raises(DataError, match=r"gone.json does not exist"):
        data_path(options, "TRAIN", 0)
    with pytest.raises(DataError, match=r"DATA_PATHS.0: nothing says where the data is"):
        data_path(SplitOptions(), "TRAIN", 0)


def test_a_broken_catalogue(catalogue: Path) -> None:
    catalogue.write_text("{")
    with pytest.raises(DataError, match=r"not valid JSON"):
        data_path(SplitOptions(DATASET_NAMES=["birds"]), "TRAIN", 0)


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
    monkeypatch.setitem(DATA_SOURCES._things, "tiles", None)
    monkeypatch.delitem(DATA_SOURCES._things, "tiles")
    Image.new("RGB", (96, 64)).save(tmp_path / "slide.png")
    catalogue.write_text(json.dumps({"slides": {"train": [str(tmp_path / "slide.png")]}}))
    data = {"DATASET_NAMES": ["slides"], "LABEL_TYPE": "zero", "DATA_LIMIT": -1}
    changes = {f"DATA__TRAIN__{key}": value for key, value in data.items()}
    run = resolved(PLUGINS=["tiles"], DATA__TRAIN__DATA_SOURCES=["tiles"], **changes)
    split = read(run.config, DataOptions).TRAIN
    source = DATA_SOURCES.get("tiles")(split, "TRAIN")
    assert len(source) == 6
    assert source.image(5).size == (32, 32)
