from __future__ import annotations

import json
from pathlib import Path

import pytest

from sslengine.data.options import SplitOptions
from sslengine.data.sources.paths import Located, data_path, label_path
from sslengine.errors import DataError

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
