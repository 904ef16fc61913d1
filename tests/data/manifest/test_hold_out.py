"""Which images of TRAIN are TEST."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sslengine.data.loading.dataset import SSLDataset
from sslengine.data.options import HoldOut, SplitOptions
from sslengine.errors import DataError
from tests.data.pictures import write_tree


def table(root: Path, count: int) -> dict[str, Any]:
    """Three images of each patient, a third of them of one class. Some values have a space."""
    names = [f"{number}.png" for number in range(count)]
    write_tree(root, *names)
    lines = [f"{name},{('ill', 'well', 'well')[number % 3]},{' ' * (number % 2)}{number // 3}"
             for number, name in enumerate(names)]  # fmt: skip
    (root / "list.csv").write_text("\n".join(["path,label,patient", *lines]))
    return {"DATA_SOURCES": ["csv_filelist"], "DATA_PATHS": [str(root / "list.csv")]}


LABELLED: dict[str, Any] = {"LABEL_SOURCES": ["csv_filelist"]}


def split(
    keys: dict[str, Any], hold_out: HoldOut, train: dict[str, Any], test: dict[str, Any]
) -> tuple[SSLDataset, SSLDataset]:
    return (
        SSLDataset(SplitOptions(**keys, **train), "TRAIN", 0, hold_out=hold_out),
        SSLDataset(SplitOptions(**keys, **test), "TEST", 1, hold_out=hold_out),
    )


UNLABELLED: dict[str, Any] = {"LABEL_TYPE": "sample_index"}


@pytest.mark.parametrize("stratified", [False, True])
@pytest.mark.parametrize("train", [LABELLED, {**LABELLED, **UNLABELLED}])
def test_each_image_is_in_one_split(
    tmp_path: Path, stratified: bool, train: dict[str, Any]
) -> None:
    hold_out = HoldOut(SHARE=0.2, STRATIFIED=stratified)
    ours, theirs = split(table(tmp_path, 30), hold_out, train, LABELLED)
    assert sorted([*ours.rows, *theirs.rows]) == list(range(30))
    assert len(theirs) == 6
    assert theirs.labels[0].tolist() == [0 if row % 3 == 0 else 1 for row in theirs.rows]  # type: ignore[union-attr]
    if stratified:
        assert np.bincount(theirs.labels[0]).tolist() == [2, 4]
    again = split(table(tmp_path, 30), hold_out, train, LABELLED)
    assert list(again[1].rows) == list(theirs.rows)
    other = HoldOut(SHARE=0.2, STRATIFIED=stratified, SEED=1)
    assert list(split(table(tmp_path, 30), other, train, LABELLED)[1].rows) != list(theirs.rows)


def test_a_file_of_several_splits_gives_images_of_train(tmp_path: Path) -> None:
    images = np.arange(10 * 4 * 4 * 3, dtype=np.uint8).reshape(10, 4, 4, 3)
    np.savez(tmp_path / "sets.npz", train_images=images, test_images=images[:3] * 0)
    keys = {"DATA_SOURCES": ["array_file"], "DATA_PATHS": [str(tmp_path / "sets.npz")]}
    ours, theirs = split(keys, HoldOut(SHARE=0.4), UNLABELLED, UNLABELLED)
    assert (len(ours), len(theirs)) == (6, 4)
    for number, row in enumerate(theirs.rows):
        assert np.array_equal(np.asarray(theirs[0, number]["data"][0]), images[int(row)])


def test_groups_are_kept_whole(tmp_path: Path) -> None:
    hold_out = HoldOut(SHARE=0.25, GROUP_COLUMN="patient")
    ours, theirs = split(table(tmp_path, 30), hold_out, UNLABELLED, UNLABELLED)
    assert not {row // 3 for row in ours.rows} & {row // 3 for row in theirs.rows}
    assert len(theirs) == 6
    with pytest.raises(DataError, match=r"HOLD_OUT.GROUP_COLUMN: .*no column 'patent'.*'patient'"):
        split(table(tmp_path, 3), HoldOut(SHARE=0.5, GROUP_COLUMN="patent"), UNLABELLED, UNLABELLED)
    folder = {"DATA_SOURCES": ["disk_folder"], "DATA_PATHS": [str(tmp_path)]}
    with pytest.raises(DataError, match=r"HOLD_OUT.GROUP_COLUMN: FolderSource has no columns"):
        split(folder, hold_out, UNLABELLED, UNLABELLED)


def test_data_limit_is_of_what_is_left(tmp_path: Path) -> None:
    hold_out, keys = HoldOut(SHARE=0.5), table(tmp_path, 12)
    _, theirs = split(keys, hold_out, UNLABELLED, UNLABELLED)
    few = {**UNLABELLED, "DATA_LIMIT": 4}
    ours, _ = split(keys, hold_out, few, UNLABELLED)
    assert len(ours) == 4
    assert not set(ours.rows) & set(theirs.rows)
    options = SplitOptions(**keys, **LABELLED, DATA_LIMIT=4)
    options.DATA_LIMIT_SAMPLING.IS_BALANCED = True
    found = SSLDataset(options, "TRAIN", 0, hold_out=HoldOut(SHARE=0.5, STRATIFIED=True))
    assert np.bincount(found.labels[0]).tolist() == [2, 2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (HoldOut(SHARE=0.01), "0.01 of the 12 images of TRAIN is none of them"),
        (HoldOut(SHARE=0.99), "0.99 of the 12 images of TRAIN is all of them"),
        (HoldOut(SHARE=0.2, GROUP_COLUMN="patient"), "in whole groups is none of them"),
    ],
)
def test_a_split_without_images(tmp_path: Path, options: HoldOut, message: str) -> None:
    with pytest.raises(DataError, match=message):
        split(table(tmp_path, 12), options, UNLABELLED, UNLABELLED)


def test_a_class_of_one_image_is_trained_on(tmp_path: Path) -> None:
    keys = table(tmp_path, 4)
    (tmp_path / "list.csv").write_text("path,label\n0.png,a\n1.png,b\n2.png,b\n3.png,b\n")
    hold_out = HoldOut(SHARE=0.6, STRATIFIED=True)
    ours, theirs = split(keys, hold_out, LABELLED, LABELLED)
    assert (ours.labels[0].tolist(), theirs.labels[0].tolist()) == ([0, 1], [1, 1])  # type: ignore[union-attr]
