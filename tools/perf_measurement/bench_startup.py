#!/usr/bin/env python3
"""What it costs to start: CPU seconds of a command and all its processes, and wall time.

    python tools/perf_measurement/bench_startup.py
    python tools/perf_measurement/bench_startup.py --against ../another_checkout

Commands take turns, so that a busy machine slows all of them alike; the median counts. What a
run's time goes to is in its own line `start-up ...`.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36  # of Linux
HERE = Path(__file__).resolve().parents[2]
TWO_STEPS = (
    "config=quickstart/simclr", "config.OPTIMIZER.num_epochs=null",
    "config.OPTIMIZER.num_iterations=2", "config.DATA.NUM_DATALOADER_WORKERS=1",
)  # fmt: skip
COMMANDS = {
    "--help": ("--help",),
    "unknown key": ("config=quickstart/simclr", "config.DATA.TRAIN.DROP_LASST=true"),
    "value out of range": ("config=quickstart/simclr", "config.SLURM.PORT_ID=3"),
    "unknown option of a loss": (
        "config=quickstart/simclr", "config.LOSS.simclr_info_nce_loss.t=1",
    ),
    "--show": ("--show", "config=quickstart/simclr"),
    "two steps": TWO_STEPS,
    "two steps, two ranks": (*TWO_STEPS, "config.DISTRIBUTED.NUM_PROC_PER_NODE=2"),
}  # fmt: skip


def measure(checkout: Path, arguments: tuple[str, ...]) -> tuple[float, float]:
    """(CPU seconds, wall seconds) of one command, run in an empty folder."""
    tool = checkout / "tools" / "run_distributed_engines.py"
    with tempfile.TemporaryDirectory() as folder:
        children = own_children()
        before, began = os.times(), time.perf_counter()
        subprocess.run(
            [sys.executable, tool, *arguments],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(checkout)},
            capture_output=True,
            check=False,  # an error is what some of them are for
        )
        wall = time.perf_counter() - began
        wait_for_orphans(children)
        after = os.times()
    cpu = after.children_user + after.children_system
    return cpu - before.children_user - before.children_system, wall


def adopt_orphans() -> None:
    """What loader workers are forked from is waited for by nobody, and so not counted."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def own_children() -> set[int]:
    """The processes that have this one as their parent."""
    tasks = Path("/proc/self/task").glob("*/children")
    return {int(pid) for each in tasks for pid in each.read_text().split()}


def wait_for_orphans(others: set[int]) -> None:
    """others: children that were there before, whose end is not ours to wait for."""
    while orphans := own_children() - others:
        for pid in orphans:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--against", type=Path, help="another checkout, measured beside this one")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    adopt_orphans()
    checkouts = [HERE, *([given.against.resolve()] if given.against else [])]
    taken: dict[tuple[str, Path], list[tuple[float, float]]] = {}
    for _ in range(given.rounds):
        for name, arguments in COMMANDS.items():
            for checkout in checkouts:
                taken.setdefault((name, checkout), []).append(measure(checkout, arguments))
    for (name, checkout), values in taken.items():
        cpu, wall = (statistics.median(each) for each in zip(*values))
        print(f"{name:26} {checkout.name:16} CPU {cpu:6.2f} s   wall {wall:6.2f} s")


if __name__ == "__main__":
    main()
