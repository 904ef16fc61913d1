"""Every way to say that an image has several classes, through the source that reads it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sslengine.data.options import SplitOptions, split_options
from sslengine.data.sources.base import build_sources
from sslengine.data.sources.labels import label_columns, standard_labels
from sslengine.errors import DataError
from tests.data.pictures import write_tree
from tests.data.sources.test_hugging_face import png
from tests.data.sources.test_tar import write_shard

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
    with pytest.raises(DataError, match=r"LABEL_SOURCES.0: there are 3 labels for 4 images .*npy"):
        from_file(tmp_path, [0, 1, 2])
    for odd in (0.5, float("inf"), float("-inf"), float("nan"), 1e30):
        with pytest.raises(DataError, match=r"LABEL_PATHS.0 .*: expected the number of a class"):
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


pytestmark = pytest.mark.filterwarnings("ignore:Cannot .*MonthDayNano")

GIVEN = [["dog", "cat"], [], ["ant"], ["cat"]]
NAMES = ("ant", "cat", "dog")
EXPECTED = [[0, 1, 1], [0, 0, 0], [1, 0, 0], [0, 1, 0]]
Keys = dict[str, Any]


def csv(root: Path) -> Keys:
    lines = ["path,label", *(f"{n}.png,{'|'.join(each)}" for n, each in enumerate(GIVEN))]
    (root / "list.csv").write_text("\n".join(lines) + "\n")
    return {"DATA_SOURCES": ["csv_filelist"], "DATA_PATHS": [str(root / "list.csv")],
            "LABEL_SEPARATOR": "|"}  # fmt: skip


def parquet(root: Path) -> Keys:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    columns = {"path": [f"{n}.png" for n in range(len(GIVEN))], "tags": GIVEN}
    parquet.write_table(pyarrow.table(columns), root / "list.parquet")
    return {"DATA_SOURCES": ["csv_filelist"], "DATA_PATHS": [str(root / "list.parquet")],
            "LABEL_COLUMN": "tags"}  # fmt: skip


def shards(root: Path, label: Callable[[list[str]], dict[str, bytes]], **keys: Any) -> Keys:
    members = {}
    for number, each in enumerate(GIVEN):
        members[f"{number}.png"] = png(number)
        members |= {f"{number}.{end}": content for end, content in label(each).items()}
    write_shard(root / "0.tar", members)
    return {"DATA_SOURCES": ["webdataset"], "DATA_PATHS": [str(root)], **keys}


def shards_json(root: Path) -> Keys:
    return shards(root, lambda each: {"json": json.dumps({"label": each}).encode()})


def shards_cls(root: Path) -> Keys:
    return shards(root, lambda each: {"cls": json.dumps(each).encode()})


def shards_text(root: Path) -> Keys:
    return shards(root, lambda each: {"cls": " ".join(each).encode()}, LABEL_SEPARATOR=" ")


def hugging_face(root: Path, kind: str) -> Keys:
    datasets = pytest.importorskip("datasets")
    value = {"text": datasets.Value("string"), "classes": datasets.ClassLabel(names=list(NAMES))}
    labels = GIVEN if kind == "text" else [[NAMES.index(one) for one in each] for each in GIVEN]
    images = [{"bytes": png(n), "path": None} for n in range(len(GIVEN))]
    features = {"img": datasets.Image(), "label": datasets.Sequence(value[kind])}
    made = datasets.Dataset.from_dict({"img": images, "label": labels},
                                      features=datasets.Features(features))  # fmt: skip
    made.save_to_disk(str(root / "rows"))
    return {"DATA_SOURCES": ["huggingface_dataset"], "DATA_PATHS": [str(root / "rows")]}


def hugging_face_text(root: Path) -> Keys:
    return hugging_face(root, "text")


def hugging_face_classes(root: Path) -> Keys:
    return hugging_face(root, "classes")


WAYS = [csv, parquet, shards_json, shards_cls, shards_text, hugging_face_text,
        hugging_face_classes]  # fmt: skip


@pytest.mark.parametrize("write", WAYS, ids=lambda each: each.__name__)
def test_a_column_for_each_class(write: Callable[[Path], Keys], tmp_path: Path) -> None:
    keys = write(tmp_path)
    options = split_options(LABEL_SOURCES=keys["DATA_SOURCES"], CACHE_INDEX=False, **keys)
    (source,) = sources = build_sources(options, "TRAIN")
    (labels,) = standard_labels(options, "TRAIN", sources)
    assert labels.names == NAMES
    assert labels.column.tolist() == EXPECTED
    assert labels.column.dtype == np.int8
    assert (source.num_classes, source.label(0).tolist()) == (3, EXPECTED[0])


def test_indicators_in_a_list_are_refused_with_the_file(tmp_path: Path) -> None:
    members = {"0.png": png(0), "0.cls": b"[0, 0, 1]"}
    write_shard(tmp_path / "0.tar", members)
    options = split_options(
        DATA_SOURCES=["webdataset"], DATA_PATHS=[str(tmp_path)], CACHE_INDEX=False
    )
    with pytest.raises(DataError, match=r"0.tar: 0.png: sample 1 has the label \[0, 0, 1\]"):
        build_sources(options, "TRAIN")
