"""Training on few labels: which images are used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sslengine.config.sections import section_problems
from sslengine.data.loading.dataset import SSLDataset
from sslengine.data.manifest.few_labels import share_of_each_class
from sslengine.data.options import DataLimitSampling, HoldOut, SplitOptions
from sslengine.errors import DataError
from tests.data.pictures import write_picture


@pytest.fixture(scope="module")
def images(tmp_path_factory: Any) -> Path:
    """20 images of a, 10 of b, 3 of c, named as ImageNet's are, but for the last of c."""
    root: Path = tmp_path_factory.mktemp("images")
    for name, count in (("a", 20), ("b", 10), ("c", 3)):
        for number in range(count):
            write_picture(root / name / f"{name}_{number}.png", number, 8)
    (root / "c" / "c_2.png").rename(root / "c" / "a_0.png")
    return root


def _set(
    root: Path, hold_out: HoldOut | None = None, split: str = "TRAIN", **given: Any
) -> SSLDataset:
    options = SplitOptions(
        DATA_SOURCES=["disk_folder"], DATA_PATHS=[str(root)], LABEL_SOURCES=["disk_folder"],
        TRANSFORMS=[{"name": "ToTensor"}], DATA_LIMIT_SAMPLING=DataLimitSampling(**given),
    )  # fmt: skip
    return SSLDataset(options, split, seed=0, hold_out=hold_out)


def _paths(dataset: SSLDataset) -> list[str]:
    parts = (Path(dataset.name(number)).parts[-2:] for number in range(len(dataset)))
    return ["/".join(each) for each in parts]


def test_a_share_of_each_class_and_all_its_classes(images: Path) -> None:
    used = _set(images, SHARE=0.1)
    assert np.bincount(used.labels[0]).tolist() == [2, 1, 1]
    assert used.classes[0].names == ("a", "b", "c")
    every = torch.from_numpy(np.asarray(_set(images).labels[0]))
    assert used.rows.tolist() == share_of_each_class(every, 0.1, 0).tolist()
    assert (
        _paths(used) == _paths(_set(images, SHARE=0.1)) != _paths(_set(images, SHARE=0.1, SEED=1))
    )
    assert len(_set(images, SHARE=1.0)) == 33


def test_names_as_in_simclrs_lists(images: Path, tmp_path: Path) -> None:
    """In any order, with the end of lines of any system."""
    names = tmp_path / "1percent.txt"
    names.write_bytes(b"b_7.png\r\na_13.png\r\n./c/a_0.png\r\na/a_0.png\n\n")
    used = _set(images, LIST=str(names))
    assert _paths(used) == ["a/a_0.png", "a/a_13.png", "b/b_7.png", "c/a_0.png"]
    assert used.labels[0].tolist() == [0, 0, 1, 2]
    assert len(used.classes[0].names) == 3
    # What is held out is not trained on, listed or not; and the other part is that of TEST.
    halves = [
        _set(images, HoldOut(SHARE=0.5), split, LIST=str(names)) for split in ("TRAIN", "TEST")
    ]
    assert sorted(_paths(halves[0]) + _paths(halves[1])) == sorted(_paths(used))


@pytest.mark.parametrize("name", ["labelled.csv", "LABELLED.CSV"])
def test_paths_in_a_table(images: Path, tmp_path: Path, name: str) -> None:
    table = tmp_path / name
    table.write_text(f"number,path,label\n0,{images}/b/b_1.png,b\n9,{images}/a/a_2.png,a\n")
    assert _paths(_set(images, LIST=str(table))) == ["a/a_2.png", "b/b_1.png"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a_0.png\n", r"a_0.png is both .*c/a_0.png and .*a/a_0.png. Put the folder before"),
        ("a_1.png\nx.png\nz.png\n", r"2 of 3 images are not in the data, the first is x.png"),
        ("\n", "names no image; an image's path is for example"),
    ],
)
def test_what_cannot_be_found(images: Path, tmp_path: Path, text: str, message: str) -> None:
    names = tmp_path / "names.txt"
    names.write_text(text)
    with pytest.raises(DataError, match=message):
        _set(images, LIST=str(names))


def test_what_cannot_be(images: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"DATA_LIMIT_SAMPLING.LIST: there is no file"):
        _set(images, LIST=str(tmp_path / "none.txt"))
    table = tmp_path / "labels.csv"
    table.write_text("label\n1\n")
    with pytest.raises(DataError, match=r"expected a column .*path.*; there are .*label"):
        _set(images, LIST=str(table))
    assert next(section_problems(DataLimitSampling(SHARE=2.0))).startswith("SHARE: ")
    assert "LIST: has no effect with SHARE" in next(DataLimitSampling(SHARE=0.1, LIST="a").check())
