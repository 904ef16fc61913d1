"""Ranks that watch each other: who is stopped or killed is named, who is slow is left alone."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest
import torch

from sslengine.contrib.heartbeat import heartbeat, leave_at_once
from sslengine.distributed import process_group
from sslengine.distributed.collectives import barrier
from sslengine.distributed.elastic import start_processes
from sslengine.distributed.ranks import rank
from sslengine.errors import LaunchError

SILENCE = 3.0
RANKS = 3


def _start(function: object, *arguments: object) -> None:
    start_processes(
        function, arguments, processes=RANKS, nodes=1, node_id=0,
        run_id="test",
    )  # fmt: skip


def _leave(folder: Path, text: str) -> None:
    (folder / f"rank{rank()}").write_text(text)
    leave_at_once(folder, text)


def _lose_rank_2(folder: Path, number: int) -> None:
    process_group.join("gloo", torch.device("cpu"), timeout_minutes=10)
    with heartbeat(SILENCE, lambda text: _leave(folder, text)):
        barrier()
        if rank() == 2:
            (folder / "pid").write_text(str(os.getpid()))
            os.kill(os.getpid(), number)
        time.sleep(600)  # not in a collective that would notice


@pytest.mark.timeout(120)
def test_a_process_that_is_stopped_is_named_and_killed(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=r"rank 2 \(process \d+ on .*\) has not responded"):
        _start(_lose_rank_2, tmp_path, signal.SIGSTOP)
    # The agent alone would take 30 seconds more to kill it.
    assert time.time() - (tmp_path / "pid").stat().st_mtime < SILENCE + 30
    # Of ranks 0 and 1 the agent may end one before it has written.
    assert any("HEARTBEAT_SECONDS" in each.read_text() for each in tmp_path.glob("rank*"))
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def _be_slow_and_end_early() -> None:
    process_group.join("gloo", torch.device("cpu"), timeout_minutes=10)
    with heartbeat(SILENCE, lambda text: os._exit(7)):
        time.sleep(2 * SILENCE if rank() == 1 else 0)
        barrier()
        time.sleep(2 * SILENCE if rank() == 2 else 0)
    process_group.leave()


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_slow_rank_is_waited_for_and_one_that_is_done_is_not_lost() -> None:
    _start(_be_slow_and_end_early)


def _be_suspended(folder: Path) -> None:
    process_group.join("gloo", torch.device("cpu"), timeout_minutes=10)
    (folder / f"{os.getpid()}").touch()
    with heartbeat(SILENCE, lambda text: os._exit(7)):
        for _ in range(10):
            time.sleep(0.5)
            barrier()
    process_group.leave()


def _suspend_all(folder: Path) -> None:
    while len(list(folder.iterdir())) < RANKS:
        time.sleep(0.1)
    time.sleep(2)
    for number in (signal.SIGSTOP, signal.SIGCONT):
        for file in folder.iterdir():
            os.kill(int(file.name), number)
        time.sleep(3 * SILENCE)


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_job_that_is_suspended_as_a_whole_goes_on(tmp_path: Path) -> None:
    """As `scontrol suspend` does."""
    threading.Thread(target=_suspend_all, args=(tmp_path,)).start()
    _start(_be_suspended, tmp_path)


def test_one_process_has_no_thread_to_watch_it() -> None:
    with heartbeat(SILENCE, lambda text: os._exit(7)):
        assert "heartbeat" not in [thread.name for thread in threading.enumerate()]
