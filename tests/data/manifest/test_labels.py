from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from sslengine.data.manifest.labels import label_columns, standard_labels
from sslengine.data.options import SplitOptions
from sslengine.data.sources.base import build_sources
from sslengine.errors import DataError
from tests.data.pictures import write_tree

FILES = ("cat/0.png", "cat/1.png", "ant/0.png", "bee/0.png")  # order: ant, bee, cat, cat


def columns(tmp_path: Path, **keys: object) -> list[np.ndarray]:
    root = write_tree(tmp_path / "images", *FILES)
    options = SplitOptions(DATA_SOURCES=["disk_folder"], DATA_PATHS=[str(root)], **keys)  # type: ignore[arg-type]
    found = standard_labels(options, "TRAIN", build_sources(options, "TRAIN"))
    return [each.column for each in found]


def from_file(tmp_path: Path, values: object) -> np.ndarray:
    np.save(tmp_path / "labels.npy", np.asarray(values))
    return columns(
        tmp_path, LABEL_SOURCES=["disk_filelist"], LABEL_PATHS=[str(tmp_path / "labels.npy")]
    )[0]


def test_the_source_itself(tmp_path: Path) -> None:
    assert columns(tmp_path, LABEL_SOURCES=["disk_folder"])[0].tolist() == [0, 1, 2, 2]


@pytest.mark.parametrize("dtype", [np.int32, np.uint8, np.int64])
def test_numbers_become_long(tmp_path: Path, dtype: type) -> None:
    labels = from_file(tmp_path, np.array([3, 1, 0, 2], dtype))
    assert labels.dtype == np.int64
    assert labels.tolist() == [3, 1, 0, 2]


def test_names_become_numbers_in_order_of_name(tmp_path: Path) -> None:
    assert from_file(tmp_path, ["dog", "ant", "dog", "cat"]).tolist() == [2, 0, 2, 1]


def test_numbers_as_text_are_numbers(tmp_path: Path) -> None:
    assert from_file(tmp_path, ["10", "9.0", "0", "2"]).tolist() == [10, 9, 0, 2]
    assert from_file(tmp_path, np.array([3.0, 1.0, 0.0, 2.0])).tolist() == [3, 1, 0, 2]
    # VISSL's number for a sample without a label: losses leave it out.
    assert from_file(tmp_path, [0, -1, 2, 1]).tolist() == [0, -1, 2, 1]


@pytest.mark.parametrize("gap", ["", "nan", "-1"])
def test_a_label_that_is_missing_is_no_class(tmp_path: Path, gap: str) -> None:
    with pytest.raises(DataError, match=r"labels\.npy\): 1 of 4 labels are missing .* row 3\."):
        from_file(tmp_path, ["cat", "ant", gap, "cat"])


def test_rows_of_class_indicators(tmp_path: Path) -> None:
    rows = np.array([[1, 0], [0, 1], [1, 1], [-1, 0]])
    np.testing.assert_array_equal(from_file(tmp_path, rows), rows)
    soft = from_file(tmp_path, rows / 4)
    assert soft.dtype == np.float32
    np.testing.assert_array_equal(soft, rows / 4)


def test_labels_that_do_not_fit(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"LABEL_SOURCES.0: there are 3 labels in .*npy for 4 images"
    ):
        from_file(tmp_path, [0, 1, 2])
    for odd in (0.5, float("inf"), float("-inf"), float("nan"), 1e30):
        with pytest.raises(
            DataError, match=rf"LABEL_PATHS.0 .*: a label is {re.escape(str(odd))};"
        ):
            from_file(tmp_path, [1.0, odd, 2.0, 3.0])
    with pytest.raises(DataError, match=r"LABEL_PATHS.0: there is no file .*gone.npy"):
        columns(tmp_path, LABEL_SOURCES=["disk_filelist"], LABEL_PATHS=["gone.npy"])


def test_label_types() -> None:
    standard = [np.array([5, 6, 7])]
    kinds = {
        kind: label_columns(
            SplitOptions(DATA_SOURCES=["a", "b"], LABEL_TYPE=kind), "TRAIN", standard, 3
        )
        for kind in ("sample_index", "zero")
    }
    assert [list(column) for column in kinds["sample_index"]] == [[0, 1, 2], [0, 1, 2]]
    assert [column.tolist() for column in kinds["zero"]] == [[0, 0, 0], [0, 0, 0]]
    assert label_columns(SplitOptions(), "TRAIN", standard, 3) == standard
    with pytest.raises(DataError, match=r"TEST.LABEL_TYPE is standard, and there are no LABEL_SOU"):
        label_columns(SplitOptions(), "TEST", [], 3)


def test_labels_that_nothing_asks_for_are_not_read(tmp_path: Path) -> None:
    keys = {"LABEL_SOURCES": ["disk_filelist"], "LABEL_PATHS": ["gone.npy"]}
    assert columns(tmp_path, LABEL_TYPE="sample_index", **keys) == []
