from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sslengine.checkpoint import lease
from sslengine.checkpoint.lease import Lease


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "BEAT", 0.01)


def _foreign(path: Path, **facts: Any) -> None:
    path.write_text(json.dumps({"host": "elsewhere", "pid": 1, "token": "x", "beat": 1, **facts}))


def test_one_of_two_has_it_until_it_gives_it_back(tmp_path: Path) -> None:
    path = tmp_path / lease.NAME
    first, second = Lease(path), Lease(path)
    assert first.take()
    assert not second.take()  # this process lives
    first.release()
    assert not path.exists()
    assert second.take()
    first.release()  # it is not its own any more
    assert path.exists()
    second.release()


def test_a_process_that_was_killed_on_this_host_has_it_no_longer(tmp_path: Path) -> None:
    path = tmp_path / lease.NAME
    take = f"from sslengine.checkpoint.lease import Lease; from pathlib import Path; " \
           f"print(Lease(Path({str(path)!r})).take())"  # fmt: skip
    done = subprocess.run([sys.executable, "-c", take], capture_output=True, text=True)
    assert done.stdout == "True\n"
    assert path.exists()
    mine = Lease(path)
    assert mine.take()
    mine.release()


def test_an_owner_elsewhere_that_no_longer_writes_is_gone(tmp_path: Path) -> None:
    path = tmp_path / lease.NAME
    _foreign(path)
    mine = Lease(path)
    assert mine.take()
    mine.release()


def test_an_owner_elsewhere_that_writes_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / lease.NAME
    _foreign(path)
    beats = iter(range(2, 9))
    monkeypatch.setattr(lease.time, "sleep", lambda _: _foreign(path, beat=next(beats)))
    assert not Lease(path).take()


@pytest.mark.parametrize("content", ["", "{", "[]"])
def test_a_broken_file_is_nobodys(tmp_path: Path, content: str) -> None:
    path = tmp_path / lease.NAME
    path.write_text(content)
    mine = Lease(path)
    assert mine.take()
    mine.release()


def test_the_owner_writes_it_again_and_again(tmp_path: Path) -> None:
    path = tmp_path / lease.NAME
    mine = Lease(path)
    assert mine.take()
    beat = 0
    while beat < 3:  # an event, not a time: the thread comes to it
        beat = json.loads(path.read_text())["beat"]
    mine.release()
