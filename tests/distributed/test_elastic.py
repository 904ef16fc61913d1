"""Ranks that the elastic agent starts: they find each other, and one's failure ends all."""

from __future__ import annotations

import logging
import multiprocessing
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.launcher.api import LaunchConfig

from sslengine.distributed import elastic
from sslengine.distributed.elastic import start_processes
from sslengine.errors import LaunchError, Preempted
from tests.distributed.failing import fail_at_first, fail_with_the_store, lose_a_rank
from tests.ranks import free_port
from tests.tail import slow_but


def _start_again(folder: Path, kind: str, max_restarts: int, times: int = 1) -> None:
    start_processes(
        fail_at_first, (folder, kind, times), processes=2, nodes=1, node_id=0,
        run_id="test", max_restarts=max_restarts,
    )  # fmt: skip


def test_all_ranks_start_again_until_it_goes_well(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    handlers = [signal.getsignal(number) for number in signal.Signals]
    with caplog.at_level(logging.WARNING, "sslengine"):
        _start_again(tmp_path, "kill", max_restarts=2)
    assert [signal.getsignal(number) for number in signal.Signals] == handlers
    assert (tmp_path / "starts1").read_text() == "xx"
    assert [(tmp_path / f"sum{rank}").read_text() for rank in (0, 1)] == ["3", "3"]
    told = [record.message for record in caplog.records if record.name == "sslengine"]
    assert all(f"rank 1 on {socket.gethostname()} failed" in text for text in told)
    assert [text.split("\n")[-1] for text in told] == ["restarting all ranks: 1 of 2"]


@pytest.mark.parametrize("restarts", slow_but([0], [0, 1]))
def test_a_bug_is_told_with_its_traceback_after_as_many_restarts_as_it_may(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], restarts: int
) -> None:
    with pytest.raises(LaunchError) as error:
        _start_again(tmp_path, "bug", max_restarts=restarts, times=9)
    text = str(error.value)
    assert text.startswith(
        f"rank 1 on {socket.gethostname()} failed: ValueError: a bug in the step"
    )
    assert "fail_at_first" in text
    assert "function(*arguments)" not in text  # which calls it, as many others would in a run
    assert "torch/" not in capfd.readouterr().err  # what the agent itself would say
    assert (tmp_path / "starts1").read_text() == "x" * (1 + restarts)


def test_a_rank_that_loses_the_store_prints_no_frames_of_torch(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(LaunchError, match="a bug in the step"):
        start_processes(
            fail_with_the_store, (tmp_path,), processes=2, nodes=1, node_id=0, run_id="test"
        )
    assert "torch" not in capfd.readouterr().err


@pytest.mark.timeout(120)  # not the ten minutes for which a rank would wait for the agent
def test_a_rank_that_has_noted_the_agents_signal_ends_with_the_killed_one(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=f"rank 1 on {socket.gethostname()} failed: Signal 9"):
        start_processes(lose_a_rank, (tmp_path,), processes=2, nodes=1, node_id=0, run_id="test")


class _LooksSeldom(LaunchConfig):
    def __init__(self, **settings: Any) -> None:
        super().__init__(monitor_interval=4, **settings)


@pytest.mark.timeout(120)  # not the ten minutes after which the collective gives up
@pytest.mark.parametrize(
    ("kind", "error", "text"),
    [
        ("user", LaunchError, f"rank 1 on {socket.gethostname()} failed: config.X: this is wrong"),
        pytest.param(
            "told",
            Preempted,
            "stopped by a signal to a rank; the ranks have ended.",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "told before it listened",
            Preempted,
            "stopped by a signal to a rank; the ranks",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_users_mistake_and_a_signal_are_not_tried_again(
    tmp_path: Path, kind: str, error: type[Exception], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor hidden by rank 0, whose connection is lost, though the agent looks only when both have
    had the time to end."""
    monkeypatch.setattr(elastic, "LaunchConfig", _LooksSeldom)
    with pytest.raises(error) as told:
        _start_again(tmp_path, kind, max_restarts=2)
    assert str(told.value).startswith(text)
    assert "Traceback" not in str(told.value)
    assert (tmp_path / "starts1").read_text() == "x"


def _node(node_id: int, port: int, folder: Path) -> None:
    start_processes(
        fail_at_first, (folder, "kill"), processes=1, nodes=2, node_id=node_id,
        endpoint=f"127.0.0.1:{port}", run_id="test", max_restarts=2,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_the_nodes_of_a_run_start_again_together(tmp_path: Path) -> None:
    port = free_port()
    spawn = multiprocessing.get_context("spawn")
    nodes = [spawn.Process(target=_node, args=(each, port, tmp_path)) for each in (0, 1)]
    try:
        for node in nodes:
            node.start()
        for node in nodes:
            node.join(150)
        assert [node.exitcode for node in nodes] == [0, 0]
        assert (tmp_path / "starts1").read_text() == "xx"
    finally:
        for node in nodes:
            node.kill()


def test_a_node_that_does_not_come_ends_the_wait(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="node 0 of 2 .*config.DISTRIBUTED.RENDEZVOUS_MINUTES"):
        start_processes(
            fail_at_first, (tmp_path, "kill"), processes=1, nodes=2, node_id=0,
            endpoint=f"127.0.0.1:{free_port()}", run_id="test", minutes=0.02,
        )  # fmt: skip


_ASK_THE_HELPER = """
import os, signal, time
from multiprocessing import resource_tracker
from sslengine.distributed.elastic import _start_tracker
_start_tracker(signal.SIGUSR1, signal.SIGUSR2)
helper = resource_tracker._resource_tracker._pid
os.kill(helper, signal.SIGUSR1)
os.kill(helper, signal.SIGUSR2)
time.sleep(0.5)
assert os.waitpid(helper, os.WNOHANG) == (0, 0), "it has ended"
assert not signal.pthread_sigmask(signal.SIG_BLOCK, ()), "still deaf itself"
"""


def test_multiprocessings_helper_survives_what_all_processes_are_sent() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _ASK_THE_HELPER], capture_output=True, text=True, check=False,
        timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
