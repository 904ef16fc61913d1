from __future__ import annotations

import errno
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from sslengine.data.options import SplitOptions
from sslengine.data.sources.base import (
    FINAL,
    DataSource,
    EncodedSource,
    build_sources,
)
from sslengine.data.sources.generated import SyntheticSource
from sslengine.engines.train import train
from sslengine.errors import DataError, SSLEngineError, UnknownNameError
from tests.data.pictures import picture
from tests.engines.runs import make_run


class Labelled(DataSource):
    num_classes = 3

    def __len__(self) -> int:
        return 7

    def image(self, index: int) -> Image.Image:
        return picture(index)

    def label(self, index: int) -> int:
        return index % 3


class Unlabelled(Labelled):
    label = DataSource.label


def test_a_source_without_labels_says_where_it_is_named() -> None:
    with pytest.raises(
        DataError, match=r"config.DATA.TEST.DATA_SOURCES.1: .*Unlabelled.*no labels"
    ):
        Unlabelled(SplitOptions(), "TEST", 1).label(0)


def test_sources_by_name_and_by_dotted_path() -> None:
    options = SplitOptions(DATA_SOURCES=["synthetic", "tests.data.sources.test_base:Labelled"])
    with pytest.raises(DataError, match=r"equally many images, not \[50000, 7\]"):
        build_sources(options, "TRAIN")
    options.DATA_SOURCES = ["tests.data.sources.test_base:Labelled"] * 2
    assert [type(source).__name__ for source in build_sources(options, "TRAIN")] == ["Labelled"] * 2


def test_no_source_and_an_unknown_one() -> None:
    with pytest.raises(DataError, match=r"config.DATA.TEST.DATA_SOURCES is empty.*DATA_PATHS=\["):
        build_sources(SplitOptions(), "TEST")
    with pytest.raises(UnknownNameError, match=r"DATA_SOURCES.0: .*'disk_foldr'.*'disk_folder'"):
        build_sources(SplitOptions(DATA_SOURCES=["disk_foldr"]), "TRAIN")


class Named(SyntheticSource):
    class_names = ("cat", "dog")
    given: tuple[Any, ...] = (0, 1)

    def label(self, index: int) -> Any:
        return self.given[index % len(self.given)]


class Halves(Named):
    given = (0, 0.5)


class Wholes(Named):
    given = (0.0, 1.0)


class Unnamed(Named):
    given = (0, 1, 2)


class Rows(Named):
    given = ([0, 1], [1, 1])


class Foreign:
    """A dataset of torch's."""

    def __init__(self, options: Any, split: str, position: int) -> None:
        pass

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        return Image.new("RGB", (8, 8)), 0


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("Named", ""),
        ("Wholes", ""),
        ("Rows", ""),
        ("Halves", "Halves.: expected the number of a class"),
        ("Unnamed", "Unnamed.: labels are of 3 classes, and class_names has 2"),
        ("Foreign", "expected a class that derives from DataSource"),
    ],
)
def test_a_source_of_the_users(tmp_path: Path, source: str, said: str) -> None:
    listed = [f"{__name__}:{source}"]
    keys = {"DATA__TRAIN__DATA_SOURCES": listed, "DATA__TRAIN__LABEL_SOURCES": listed}
    with pytest.raises(SSLEngineError, match=said) if said else nullcontext():
        train(make_run(tmp_path, **keys))


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    return waits


class Storage(EncodedSource):
    """Fail so often, then answer."""

    def __init__(self, failures: int, error: OSError, **options: Any) -> None:
        super().__init__(SplitOptions(**options), "TRAIN")
        self.failures, self.error, self.asked = failures, error, 0

    def __len__(self) -> int:
        return 1

    def read(self, index: int) -> bytes:
        self.asked += 1
        if self.asked <= self.failures:
            raise self.error
        return b"bytes"


STALE = OSError(errno.ESTALE, "Stale file handle")


def test_a_read_is_tried_again_after_longer_and_longer(slept: list[float]) -> None:
    assert Storage(0, STALE).encoded(0) == b"bytes"
    assert slept == []
    assert Storage(3, STALE, READ_RETRIES=3, READ_RETRY_WAIT=0.5).encoded(0) == b"bytes"
    assert slept == [0.5, 1.0, 2.0]


@pytest.mark.parametrize(
    ("retries", "told"), [(2, "tried 3 times in 3 s"), (0, "tried 1 times in")]
)
def test_in_the_end_it_is_said_how_often(slept: list[float], retries: int, told: str) -> None:
    storage = Storage(9, STALE, READ_RETRIES=retries, READ_RETRY_WAIT=1.0)
    with pytest.raises(OSError, match=rf"Stale file handle \({told}") as caught:
        storage.encoded(0)
    assert (storage.asked, caught.value.errno) == (retries + 1, errno.ESTALE)


@pytest.mark.parametrize("kind", FINAL)
def test_what_is_not_there_is_asked_for_once(kind: type[OSError], slept: list[float]) -> None:
    storage = Storage(1, kind("no"))
    with pytest.raises(kind, match="^no$"):
        storage.encoded(0)
    assert (storage.asked, slept) == (1, [])
