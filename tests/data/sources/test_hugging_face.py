from __future__ import annotations

import importlib
import pickle
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from sslengine.data.loading.dataset import SSLDataset
from sslengine.data.options import split_options
from sslengine.data.sources.hugging_face import HuggingFaceSource
from sslengine.errors import DataError, MissingDataError
from tests.data.pictures import picture

# dill, by which `datasets` makes its fingerprints, of types of pyarrow.
pytestmark = pytest.mark.filterwarnings("ignore:Cannot .*MonthDayNano")


def source(path: Path, split: str = "TRAIN", **keys: object) -> HuggingFaceSource:
    return HuggingFaceSource(split_options(DATA_PATHS=[str(path)], **keys), split)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def datasets() -> Any:
    return pytest.importorskip("datasets", reason="reads its data sets, pip install datasets")


def png(number: int) -> bytes:
    file = BytesIO()
    picture(number).save(file, "PNG")
    return file.getvalue()


def rows(datasets: Any, numbers: list[int], **more: Any) -> Any:
    images = [{"bytes": png(number), "path": None} for number in numbers]
    columns = {"img": images, "label": [number % 2 for number in numbers], **more}
    features = datasets.Features(
        {
            "img": datasets.Image(),
            "label": datasets.ClassLabel(names=["even", "odd"]),
            **{name: datasets.Value("int64") for name in more},
        }
    )
    return datasets.Dataset.from_dict(columns, features=features)


def test_images_and_labels(datasets: Any, tmp_path: Path) -> None:
    saved = rows(datasets, [3, 1, 4], age=[30, 10, 40])
    # The format is in the state that save_to_disk writes.
    saved.with_format("numpy", columns=["label"]).save_to_disk(str(tmp_path / "data"))
    found = source(tmp_path / "data")
    for each in (found, pickle.loads(pickle.dumps(found))):
        assert [each.encoded(index) for index in range(len(each))] == [png(3), png(1), png(4)]
        assert each.image(0).tobytes() == picture(3).tobytes()
        assert (each.labels().tolist(), each.label(2), each.num_classes) == ([1, 1, 0], 0, 2)
    assert source(tmp_path / "data", LABEL_COLUMN="age").labels().tolist() == [30, 10, 40]


def _labelled(datasets: Any, folder: Path, kind: str, labels: list[Any]) -> HuggingFaceSource:
    images = [{"bytes": png(0), "path": None} for _ in labels]
    features = {"img": datasets.Image(), "label": datasets.Value(kind)}
    made = datasets.Dataset.from_dict({"img": images, "label": labels},
                                      features=datasets.Features(features))  # fmt: skip
    made.save_to_disk(str(folder / "data"))
    return source(folder / "data")


def test_text_and_numbers_are_classes(datasets: Any, tmp_path: Path) -> None:
    found = _labelled(datasets, tmp_path / "1", "string", ["dog", "ant", "dog"])
    assert found.labels().tolist() == [1, 0, 1]
    assert (list(found.class_names), found.num_classes) == (["ant", "dog"], 2)
    found = _labelled(datasets, tmp_path / "2", "float64", [10.0, 2.0])
    assert (found.labels().tolist(), list(found.class_names)) == ([10, 2], [])


@pytest.mark.parametrize(
    ("kind", "labels"),
    [("string", ["a", None]), ("int64", [3, None]), ("int64", [0, -1]), ("float64", [1.0, None])],
)
def test_a_gap_is_named(datasets: Any, tmp_path: Path, kind: str, labels: list[Any]) -> None:
    found = _labelled(datasets, tmp_path, kind, labels)
    with pytest.raises(DataError, match="1 of 2 images.* row 1 of .*none in the column 'label'"):
        found.labels()


def test_splits(datasets: Any, tmp_path: Path) -> None:
    parts = {"train": rows(datasets, [0, 1, 2]), "test": rows(datasets, [3])}
    datasets.DatasetDict(parts).save_to_disk(str(tmp_path / "data"))
    options = split_options(
        DATA_SOURCES=["huggingface_dataset"],
        LABEL_SOURCES=["huggingface_dataset"],
        DATA_PATHS=[str(tmp_path / "data")],
    )
    assert len(SSLDataset(options, "TRAIN", 0)) == 3
    test = SSLDataset(options, "TEST", 0)
    assert test[0, 0]["data"][0].tobytes() == picture(3).tobytes()
    assert test[0, 0]["label"] == [1]
    datasets.DatasetDict({"train": parts["train"]}).save_to_disk(str(tmp_path / "one"))
    with pytest.raises(DataError, match=r"nothing for TEST .* It has train"):
        source(tmp_path / "one", "TEST")


@pytest.mark.usefixtures("own_cache")
def test_what_is_wrong_is_told(datasets: Any, tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match=r"gone is not there: .* has no 'gone'"):
        source(tmp_path / "gone")
    (tmp_path / "empty").mkdir()
    (tmp_path / "a.parquet").write_bytes(b"no parquet")
    for each in ("empty", "a.parquet"):
        with pytest.raises(DataError, match=f"{each} cannot be read"):
            source(tmp_path / each)
    rows(datasets, [0]).save_to_disk(str(tmp_path / "data"))
    with pytest.raises(DataError, match=r"IMAGE_COLUMN: .*data has no column 'imgs'"):
        source(tmp_path / "data", IMAGE_COLUMN="imgs")
    with pytest.raises(DataError, match=r"LABEL_COLUMN: .*'img'"):
        source(tmp_path / "data", LABEL_COLUMN="img")
    rows(datasets, [0]).remove_columns(["img"]).save_to_disk(str(tmp_path / "none"))
    with pytest.raises(DataError, match=r"IMAGE_COLUMN: none of the columns.*\n  It has: label"):
        source(tmp_path / "none")
    rows(datasets, [0]).remove_columns(["label"]).save_to_disk(str(tmp_path / "bare"))
    with pytest.raises(DataError, match=r"TRAIN.LABEL_COLUMN"):
        source(tmp_path / "bare").labels()


def parquet(file: Path, numbers: Sequence[int | None], form: str) -> Path:
    """As pyarrow alone writes it, without what `datasets` says of its columns."""
    arrow = pytest.importorskip("pyarrow")
    images = [None if number is None else png(number) for number in numbers]
    column = images if form == "bytes" else [{"bytes": each, "path": None} for each in images]
    table = arrow.table({"picture": column, "label": [(number or 0) % 2 for number in numbers]})
    file.parent.mkdir(parents=True, exist_ok=True)
    importlib.import_module("pyarrow.parquet").write_table(table, file)
    return file


@pytest.fixture
def own_cache(monkeypatch: pytest.MonkeyPatch, datasets: Any, tmp_path: Path) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("form", ["bytes", "bytes and path"])
def test_images_in_parquet_files_of_other_programs(form: str, tmp_path: Path) -> None:
    file = parquet(tmp_path / "a.parquet", [3, 1], form)
    found = source(file)
    for each in (found, pickle.loads(pickle.dumps(found))):
        assert [each.image(index).tobytes() for index in (0, 1)] == [
            picture(number).tobytes() for number in (3, 1)
        ]
        assert each.labels().tolist() == [1, 1]
        assert each.path(1) == f"row 1 of {file}"
    parquet(file, [0, 2, 4], form)  # what was copied into the cache is not used for another file
    assert source(file).labels().tolist() == [0, 0, 0]


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("form", ["bytes", "bytes and path"])
def test_a_row_without_an_image(form: str, tmp_path: Path) -> None:
    found = source(parquet(tmp_path / "a.parquet", [3, None], form))
    assert found.image(0).tobytes() == picture(3).tobytes()
    with pytest.raises(ValueError, match="the row has no image"):
        found.image(1)


@pytest.mark.usefixtures("own_cache")
def test_a_folder_as_the_hub_ships_it(datasets: Any, tmp_path: Path) -> None:
    """Images and classes as to_parquet writes them; the log of a run knows the classes' names."""
    data = tmp_path / "train-set" / "data"
    data.mkdir(parents=True)
    for name, numbers in {"train-00000-of-00002": [0, 1], "train-00001-of-00002": [2],
                          "test-00000-of-00001": [3]}.items():  # fmt: skip
        rows(datasets, numbers).to_parquet(str(data / f"{name}.parquet"))
    found = source(data.parent)
    assert [each.tobytes() for each in map(found.image, range(3))] == [
        picture(number).tobytes() for number in range(3)
    ]
    assert (found.labels().tolist(), list(found.class_names)) == ([0, 1, 0], ["even", "odd"])
    assert len(source(data.parent, "TEST")) == 1
    (data / "test-00000-of-00001.parquet").unlink()
    with pytest.raises(DataError, match=r"nothing for TEST .*train-0"):
        source(data.parent, "TEST")
    for file in sorted(data.iterdir()):
        file.rename(data / f"{file.stem[6:11]}.parquet")
    assert len(source(data.parent, "TEST")) == 3
