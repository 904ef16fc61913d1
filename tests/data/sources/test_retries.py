from __future__ import annotations

import errno
import time
from collections.abc import Iterator

import pytest

from sslengine.data.options import SplitOptions
from sslengine.data.sources.base import EncodedSource
from sslengine.data.sources.retries import FINAL, retried


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    return waits


class Storage:
    """Fails so often, then answers."""

    def __init__(self, failures: int, error: OSError) -> None:
        self.failures, self.error, self.asked = failures, error, 0

    def __call__(self) -> bytes:
        self.asked += 1
        if self.asked <= self.failures:
            raise self.error
        return b"bytes"


STALE = OSError(errno.ESTALE, "Stale file handle")


def test_asked_again_after_longer_and_longer(slept: list[float]) -> None:
    assert retried(Storage(3, STALE), retries=3, wait=0.5) == b"bytes"
    assert slept == [0.5, 1.0, 2.0]


def test_what_answers_is_not_waited_for(slept: list[float]) -> None:
    assert retried(Storage(0, STALE), retries=3, wait=0.5) == b"bytes"
    assert slept == []


def test_in_the_end_it_is_said_how_often(slept: list[float]) -> None:
    storage = Storage(9, STALE)
    with pytest.raises(OSError, match=r"Stale file handle \(tried 3 times in 3 s\)") as caught:
        retried(storage, retries=2, wait=1)
    assert (storage.asked, caught.value.errno) == (3, errno.ESTALE)


def test_no_retries(slept: list[float]) -> None:
    with pytest.raises(OSError, match=r"tried 1 times in 0 s"):
        retried(Storage(1, STALE), retries=0, wait=1)
    assert slept == []


@pytest.mark.parametrize("kind", FINAL)
def test_what_is_not_there_is_asked_for_once(kind: type[OSError], slept: list[float]) -> None:
    storage = Storage(1, kind("no"))
    with pytest.raises(kind, match="^no$"):
        retried(storage, retries=3, wait=1)
    assert (storage.asked, slept) == (1, [])


def test_the_keys_of_a_source(slept: list[float]) -> None:
    class Flaky(EncodedSource):
        storage = Storage(2, STALE)

        def __len__(self) -> int:
            return 1

        def read(self, index: int) -> bytes:
            return self.storage()

    assert Flaky(SplitOptions(READ_RETRY_WAIT=0.25), "TRAIN").encoded(0) == b"bytes"
    assert slept == [0.25, 0.5]
    Flaky.storage = Storage(2, STALE)
    with pytest.raises(OSError, match=r"tried 2 times"):
        Flaky(SplitOptions(READ_RETRIES=1), "TRAIN").encoded(0)
