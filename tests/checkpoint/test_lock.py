from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from sslengine.checkpoint.lock import NAME, owned
from sslengine.distributed.ranks import rank
from sslengine.errors import CheckpointError
from tests.ranks import RankPool

HOLD = """
import sys, time
from pathlib import Path
from sslengine.checkpoint.lock import owned
with owned(Path(sys.argv[1])):
    print("mine", flush=True)
    time.sleep(120)
"""


def test_a_second_run_is_refused_and_told_who_has_it(tmp_path: Path) -> None:
    with owned(tmp_path):
        with pytest.raises(CheckpointError) as error, owned(tmp_path):
            raise AssertionError("it had the folder too")
        text = str(error.value)
        assert f"another run is using {tmp_path}: process {os.getpid()} on" in text
        assert socket.gethostname() in text
        assert "config.CHECKPOINT.DIR" in text
        assert json.loads((tmp_path / NAME).read_text())["pid"] == os.getpid()
    with owned(tmp_path):  # free again
        pass


def test_a_run_that_was_killed_leaves_no_lock(tmp_path: Path) -> None:
    other = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE)
    assert other.stdout is not None
    assert other.stdout.readline() == b"mine\n"
    with pytest.raises(CheckpointError, match=f"process {other.pid} on"), owned(tmp_path):
        pass
    other.send_signal(signal.SIGKILL)
    other.wait()
    other.stdout.close()
    with owned(tmp_path):
        pass


@pytest.mark.parametrize("content", ["", "{", "[]", "{}"])
def test_an_owner_that_has_not_said_who_it_is(tmp_path: Path, content: str) -> None:
    with owned(tmp_path):
        (tmp_path / NAME).write_text(content)
        with (
            pytest.raises(CheckpointError, match="its lock file does not say which"),
            owned(tmp_path),
        ):
            pass


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("the user's")
    with (
        pytest.raises(CheckpointError, match="cannot be the folder of a run: "),
        owned(tmp_path / "file"),
    ):
        pass
    assert (tmp_path / "file").read_text() == "the user's"


def _try(folder: Path, elsewhere: Path) -> str:
    try:
        # Rank 1 has a folder of its own, and must still follow rank 0.
        with owned(folder if rank() == 0 else elsewhere):
            return "had it"
    except CheckpointError as error:
        return str(error)


def test_all_ranks_follow_rank_0(two_ranks: RankPool, tmp_path: Path) -> None:
    places = tmp_path / "a", tmp_path / "b"
    assert two_ranks.run(_try, *places) == ["had it"] * 2
    with owned(tmp_path / "a"):
        for text in two_ranks.run(_try, *places):
            assert "another run is using" in text


def test_a_file_system_without_locks_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def flock(*_: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("sslengine.atomic.fcntl.flock", flock)
    with owned(tmp_path):
        assert json.loads((tmp_path / NAME).read_text())["pid"] == os.getpid()
    assert f"cannot lock a file ({os.strerror(errno.ENOLCK)})" in caplog.text
