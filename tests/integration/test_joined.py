"""Commands that something else started side by side find each other and train as one run."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.integration.command import COMMAND, write_config
from tests.ranks import free_port

PATIENCE = 150  # seconds


def _run_both(folder: Path, each: list[tuple[list[str], dict[str, str]]]) -> list[str]:
    """The commands with these arguments and variables at the same time; what they print."""
    write_config(folder, DATA__TRAIN__BATCHSIZE_PER_REPLICA=2, OPTIMIZER__num_epochs=1)
    others = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
    started = [
        subprocess.Popen(
            [*COMMAND, *arguments], cwd=folder, env={**others, **variables}, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for arguments, variables in each
    ]  # fmt: skip
    try:
        printed = [process.communicate(timeout=PATIENCE) for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0, 0], printed
    return [out for out, _ in printed]


def _mpirun(rank: int) -> dict[str, str]:
    return {
        "OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": "2",
        "OMPI_COMM_WORLD_LOCAL_RANK": str(rank), "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(2 * PATIENCE)
def test_as_mpirun_starts_them(tmp_path: Path) -> None:
    two = ["config.DISTRIBUTED.NUM_PROC_PER_NODE=2"]
    first, second = _run_both(tmp_path, [(two, _mpirun(rank)) for rank in (0, 1)])
    assert first.startswith("launch: 2 ranks, started by mpirun\n")
    assert "2 ranks on cpu" in first
    assert second == ""


@pytest.mark.timeout(2 * PATIENCE)
@pytest.mark.slow
def test_two_nodes_by_hand(tmp_path: Path) -> None:
    place = f"127.0.0.1:{free_port()}"
    nodes = ["config.DISTRIBUTED.NUM_NODES=2", f"config.DISTRIBUTED.RUN_ID='{place}'"]
    first, second = _run_both(tmp_path, [([*nodes, f"node_id={node}"], {}) for node in (0, 1)])
    assert first.startswith(f"launch: node 0 of 2, with 1 rank; rendezvous at {place}\n")
    assert second == f"launch: node 1 of 2, with 1 rank; rendezvous at {place}\n"
    assert "2 ranks on cpu" in first
