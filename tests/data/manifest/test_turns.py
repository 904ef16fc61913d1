from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sslengine.data.manifest.turns import turn


def test_one_at_a_time(tmp_path: Path) -> None:
    within, most = 0, 0

    def work(_: int) -> None:
        nonlocal within, most
        with turn(tmp_path / "lock", "counting"):
            within += 1
            most = max(most, within)
            threading.Event().wait(0.005)
            within -= 1

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(16)))
    assert most == 1


def test_who_waits_says_for_what(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def wait() -> None:
        with turn(tmp_path / "lock", "copying birds"):
            pass

    waiting = threading.Thread(target=wait)
    with caplog.at_level(logging.INFO, "sslengine"):
        with turn(tmp_path / "lock", "copying birds"):
            assert not caplog.messages
            waiting.start()
            while not caplog.messages:
                threading.Event().wait(0.005)
        waiting.join()
    assert caplog.messages == ["waiting for another process that is copying birds"]


def test_an_error_ends_the_turn(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), turn(tmp_path / "lock", "failing"):
        raise RuntimeError
    with turn(tmp_path / "lock", "failing"):
        pass
