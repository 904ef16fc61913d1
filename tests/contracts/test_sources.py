"""Every source that ships, on files that are made for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from sslengine.registry import DATA_SOURCES
from sslengine.testing import Contract
from tests.data.sources.every import EVERY, INSTALLED, OF_PICTURES, STREAMS, mnist

# dill, by which `datasets` makes its fingerprints, of types of pyarrow.
pytestmark = pytest.mark.filterwarnings("ignore:Cannot .*MonthDayNano")

LABELLED = {
    "disk_folder", "csv_filelist", "webdataset", "array_file", "shapes",
    "upright_shapes",
}  # fmt: skip


@pytest.fixture(scope="module", params=INSTALLED)
def tried(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Contract:
    name, root = request.param, tmp_path_factory.mktemp("source")
    files = {**OF_PICTURES, "torchvision_dataset": mnist}
    arguments = {"DATA_PATHS": [str(files[name](Path(root)))]} if name in files else {}
    if name == "torchvision_dataset":
        arguments["DATASET_NAMES"] = ["MNIST"]
    if name == "synthetic":
        arguments["RANDOM_SYNTHETIC_IMAGES"] = True  # type: ignore[assignment]
    if name in LABELLED:
        arguments |= {"LABEL_SOURCES": [name], "LABEL_TYPE": "standard"}  # type: ignore[dict-item]
    return Contract("source", name, arguments)


def test_source_alone(tried: Contract) -> None:
    for promise in tried.promises:
        if promise != "does_not_depend_on_workers":
            tried.keep(promise)


@pytest.mark.slow
def test_source_in_workers(tried: Contract) -> None:
    tried.keep("does_not_depend_on_workers")


def test_none_is_forgotten() -> None:
    assert set(DATA_SOURCES._declared) == {*EVERY, *STREAMS}
