"""What ranks do in tests of their agent: little is imported here, for each rank imports it."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import torch

from sslengine.distributed import process_group
from sslengine.distributed.collectives import sum_in_place
from sslengine.distributed.ranks import rank
from sslengine.errors import ConfigError, Preempted


def fail_at_first(folder: Path, kind: str, times: int = 1) -> None:
    """Rank 1 fails in its first starts; all leave the sum over ranks of their numbers from 1."""
    process_group.join("gloo", torch.device("cpu"), timeout_minutes=10)
    with (folder / f"starts{rank()}").open("a") as starts:
        starts.write("x")
    if rank() == 1 and len((folder / "starts1").read_text()) <= times:
        if kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if kind == "user":
            raise ConfigError("config.X: this is wrong")
        if kind == "told":
            raise Preempted("stopped by a signal")
        if kind == "told before it listened":
            os.kill(os.getpid(), signal.SIGUSR2)
        raise ValueError("a bug in the step")
    total = sum_in_place(torch.tensor(rank() + 1)).item()
    (folder / f"sum{rank()}").write_text(str(total))
    process_group.leave()


def fail_with_the_store(folder: Path) -> None:
    """Rank 0, which holds the store, fails while rank 1 waits for a key of it."""
    process_group.join("gloo", torch.device("cpu"), timeout_minutes=10)
    sum_in_place(torch.tensor(0))
    if rank() == 0:
        raise ValueError("a bug in the step")
    process_group.own_store("test").get("never set")


def lose_a_rank(folder: Path) -> None:
    """Rank 1 is killed; rank 0, which trains, notes the agent's signal and then loses it."""
    process_group.join("gloo", torch.device("cpu"), timeout_minutes=10)
    listens, noted = folder / "listens", []
    if rank() == 1:
        while not listens.exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
    signal.signal(signal.SIGTERM, lambda *_: noted.append(True))
    listens.touch()
    while not noted:
        time.sleep(0.01)
    sum_in_place(torch.tensor(0))
