"""Every source that ships, on files that are made for it: alone, and beside another.

That batches are the same however many workers and ranks there are: tests/data/test_determinism.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sslengine.data.loading.dataset import SSLDataset
from sslengine.data.options import SplitOptions
from sslengine.registry import DATA_SOURCES
from sslengine.testing import suite_of
from sslengine.testing.promises import Suite
from tests.data.pictures import picture
from tests.data.sources.every import COUNT, EVERY, INSTALLED, OF_PICTURES, STREAMS, file_list, mnist

# dill, by which `datasets` makes its fingerprints, of types of pyarrow.
pytestmark = pytest.mark.filterwarnings("ignore:Cannot .*MonthDayNano")

LABELLED = {
    "disk_folder", "csv_filelist", "webdataset", "array_file", "shapes",
    "upright_shapes",
}  # fmt: skip


@pytest.fixture(scope="module", params=INSTALLED)
def tried(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Suite:
    name, root = request.param, tmp_path_factory.mktemp("source")
    files = {**OF_PICTURES, "torchvision_dataset": mnist}
    arguments = {"DATA_PATHS": [str(files[name](Path(root)))]} if name in files else {}
    if name == "torchvision_dataset":
        arguments["DATASET_NAMES"] = ["MNIST"]
    if name == "synthetic":
        arguments["RANDOM_SYNTHETIC_IMAGES"] = True  # type: ignore[assignment]
    if name in LABELLED:
        arguments |= {"LABEL_SOURCES": [name], "LABEL_TYPE": "standard"}  # type: ignore[dict-item]
    return suite_of("source", name, arguments)


def test_source_alone(tried: Suite) -> None:
    for promise in tried.promises:
        if promise != "does_not_depend_on_workers":
            tried.keep(promise)


@pytest.mark.slow
def test_source_in_workers(tried: Suite) -> None:
    tried.keep("does_not_depend_on_workers")


def test_none_is_forgotten() -> None:
    assert set(DATA_SOURCES._declared) == {*EVERY, *STREAMS}


@pytest.fixture(params=[name for name in OF_PICTURES if name in INSTALLED])
def split(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    path = OF_PICTURES[request.param](tmp_path)
    return {"DATA_SOURCES": [request.param], "DATA_PATHS": [str(path)]}


def numbers(data: SSLDataset) -> Iterator[int]:
    known = {picture(number).tobytes(): number for number in range(COUNT)}
    return (known[data[0, index]["data"][0].tobytes()] for index in range(len(data)))


def test_each_image_is_there_once_without_labels(split: dict[str, Any]) -> None:
    data = SSLDataset(SplitOptions(**split, LABEL_TYPE="sample_index"), "TRAIN", 0)
    assert sorted(numbers(data)) == list(range(COUNT))
    assert data[0, 5]["label"] == [5]


@pytest.mark.parametrize("name", sorted(LABELLED & {*OF_PICTURES}))
def test_labels_belong_to_their_images(name: str, tmp_path: Path) -> None:
    options = SplitOptions(
        DATA_SOURCES=[name], LABEL_SOURCES=[name], DATA_PATHS=[str(OF_PICTURES[name](tmp_path))]
    )
    for keys in ({}, {"DATA_LIMIT": 6}):
        data = SSLDataset(SplitOptions(**{**vars(options), **keys}), "TRAIN", 0)
        found = list(numbers(data))
        assert [data[0, index]["label"] for index in range(len(data))] == [[n % 3] for n in found]
        assert len(found) == keys.get("DATA_LIMIT", COUNT)


def test_two_sources_at_once(split: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "second").mkdir()
    both = {
        "DATA_SOURCES": [*split["DATA_SOURCES"], "disk_filelist"],
        "DATA_PATHS": [*split["DATA_PATHS"], str(file_list(tmp_path / "second"))],
    }
    data = SSLDataset(SplitOptions(**both, LABEL_TYPE="zero"), "TRAIN", 0)
    first, second = data[0, 7]["data"]
    assert first.tobytes() in {picture(number).tobytes() for number in range(COUNT)}
    assert second.tobytes() == picture(7).tobytes()
