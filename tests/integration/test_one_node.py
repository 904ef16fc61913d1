"""Two ranks on one node, by the real command: who can reach them, and what a killed launcher does."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.command import COMMAND, write_config

pytestmark = [
    pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="Linux tells who listens"),
    pytest.mark.timeout(300),
]

SLOW = """
import time
from sslengine.hooks.events import Hook
from sslengine.registry import register_hook

@register_hook("slow")
class Slow(Hook):
    def on_step(self, task):
        time.sleep(0.2)
"""
PATIENCE = 200  # seconds


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A run of two ranks in mid-training, each with a worker."""
    (tmp_path / "slow.py").write_text(SLOW)
    write_config(
        tmp_path, OPTIMIZER__num_epochs=200, PLUGINS=["slow"], HOOKS__EXTRA=["slow"],
        DISTRIBUTED__NUM_PROC_PER_NODE=2, DATA__TRAIN__BATCHSIZE_PER_REPLICA=2, LOG_FREQUENCY=1,
        DATA__NUM_DATALOADER_WORKERS=1, CHECKPOINT__CHECKPOINT_FREQUENCY=1000,
    )  # fmt: skip
    process = subprocess.Popen(
        [*COMMAND, "config.CHECKPOINT.DIR=run"], cwd=tmp_path, text=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip
    metrics = tmp_path / "run" / "metrics.jsonl"
    _wait(lambda: process.poll() is not None or (metrics.exists() and metrics.read_text()))
    assert process.poll() is None, process.communicate()[1]
    family = _family(process.pid)
    yield process
    for each in family:
        if _alive(each):
            os.kill(each, signal.SIGKILL)
    process.communicate()


def _wait(condition: object) -> None:
    until = time.monotonic() + PATIENCE
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < until
        time.sleep(0.1)


def _family(first: int) -> list[int]:
    """A process and all below it."""
    children: dict[int, list[int]] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(status.read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has ended
            continue
        children.setdefault(parent, []).append(int(status.parent.name))
    found = [first]
    for each in found:
        found.extend(children.get(each, ()))
    return found


def _alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _listening(processes: list[int]) -> list[str]:
    """The addresses on which these listen, in the kernel's digits."""
    links = [link for each in processes for link in Path(f"/proc/{each}/fd").iterdir()]
    sockets = {os.readlink(link) for link in links if link.is_symlink()}
    rows = [
        line.split()
        for table in ("/proc/net/tcp", "/proc/net/tcp6")
        for line in Path(table).read_text().splitlines()[1:]
    ]
    return [
        row[1].split(":")[0] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in sockets
    ]


@pytest.mark.slow
def test_nobody_else_reaches_it_and_it_outlives_its_launcher_only_to_save(
    launcher: subprocess.Popen[str], tmp_path: Path
) -> None:
    family = _family(launcher.pid)
    listening = _listening(family)
    assert len(listening) >= 4  # the agent's store, rank 0's, and gloo's in each rank
    assert set(listening) <= {"0100007F", "0000000000000000FFFF00000100007F"}

    launcher.kill()
    _wait(lambda: not any(_alive(each) for each in family))
    log = (tmp_path / "run" / "log.txt").read_text()
    assert "the process that started the ranks has ended" in log
    (saved,) = (tmp_path / "run" / "checkpoints").glob("model_iteration*.torch")
    step = re.search(r"stopped by SIGTERM after step (\d+)", log)
    assert step is not None
    assert saved.name == f"model_iteration{step.group(1)}.torch"
    assert json.loads(saved.with_suffix(".json").read_text())["iteration"] == int(step.group(1))
    with (tmp_path / "run" / ".lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
