"""Every way to say that an image has several classes, through the source that reads it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sslengine.data.manifest.labels import standard_labels
from sslengine.data.options import split_options
from sslengine.data.sources.base import build_sources
from sslengine.errors import DataError
from tests.data.sources.test_hugging_face import png
from tests.data.sources.test_tar_shards import write_shard

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
