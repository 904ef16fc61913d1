from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from extra_scripts import make_file_lists
from sslengine.command import make
from sslengine.data.loading.dataset import SSLDataset
from sslengine.data.options import SplitOptions
from sslengine.errors import SSLEngineError


def main(arguments: list[str]) -> int:
    return make.main(["file-lists", *arguments])


def _images(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4), (len(name), 0, 0)).save(folder / name)


def test_splits_with_classes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    data, out = tmp_path / "birds", tmp_path / "lists"
    _images(data, "train/wren/1.png", "train/crow/2.png", "train/wren/3.png", "val/wren/4.png",
            "val/crow/5.png")  # fmt: skip
    main([str(data), str(out)])
    told = capsys.readouterr().out
    assert "train: 3 images, 2 classes" in told
    assert "DATASET_NAMES=[birds]" in told
    assert (out / "classes.txt").read_text() == "crow\nwren\n"
    labels = np.load(out / "train_labels.npy").tolist()
    names = [Path(path).parent.name for path in np.load(out / "train_images.npy")]
    assert [["crow", "wren"][label] for label in labels] == names == ["crow", "wren", "wren"]
    monkeypatch.setenv("SSLENGINE_DATASET_CATALOG", str(out / "dataset_catalog.json"))
    options = SplitOptions(
        DATA_SOURCES=["disk_filelist"], LABEL_SOURCES=["disk_filelist"], DATASET_NAMES=["birds"]
    )
    for split, count in (("TRAIN", 3), ("TEST", 2)):
        assert len(SSLDataset(options, split, seed=0)) == count


def test_a_class_whose_name_is_not_utf8(tmp_path: Path) -> None:
    _images(tmp_path / "birds", "wren/1.png")
    os.rename(tmp_path / "birds" / "wren", os.fsencode(tmp_path) + b"/birds/caf\xe9")
    main([str(tmp_path / "birds"), str(tmp_path / "lists")])
    assert (tmp_path / "lists" / "classes.txt").read_bytes() == b"caf\xe9\n"
    (path,) = np.load(tmp_path / "lists" / "train_images.npy")
    assert os.path.isfile(path)


def test_a_flat_folder_has_no_labels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _images(tmp_path / "mine", "a.png", "b.png")
    main([str(tmp_path / "mine"), str(tmp_path / "lists"), "--name=photos"])
    assert "train: 2 images, no labels" in capsys.readouterr().out
    catalogue = json.loads((tmp_path / "lists" / "dataset_catalog.json").read_text())
    assert catalogue == {"photos": {"train": [str(tmp_path / "lists" / "train_images.npy")]}}
    assert not (tmp_path / "lists" / "train_labels.npy").exists()


def test_what_is_wrong_is_told_and_nothing_written(tmp_path: Path) -> None:
    data, out = tmp_path / "birds", tmp_path / "lists"
    with pytest.raises(SSLEngineError, match="is not there"):
        main([str(data), str(out)])
    assert make_file_lists.main([str(data), str(out)]) == 2  # by its earlier name
    _images(data, "train/wren/1.png", "val/crow/2.png")
    with pytest.raises(
        SSLEngineError, match=r"val and train differ in their classes: .*crow.*wren"
    ):
        main([str(data), str(out)])
    assert not out.exists()


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    _images(tmp_path / "mine", "a.png")
    out = tmp_path / "lists"
    out.mkdir()
    (out / "classes.txt").write_text("precious")
    with pytest.raises(SSLEngineError, match=r"classes\.txt exists; it is not overwritten"):
        main([str(tmp_path / "mine"), str(out)])
    assert [each.name for each in out.iterdir()] == ["classes.txt"]


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "dataset_catalog.json" in capsys.readouterr().out
