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


@pytest.mark.slow
@pytest.mark.timeout(2 * PATIENCE)
def test_ranks_by_variables_that_the_user_set(tmp_path: Path) -> None:
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    two = ["config.DISTRIBUTED.NUM_PROC_PER_NODE=2"]
    each = [(two, {"RANK": rank, "LOCAL_RANK": rank, **place}) for rank in ("0", "1")]
    first, second = _run_both(tmp_path, each)
    assert first.startswith("launch: 2 ranks, started by RANK and WORLD_SIZE\n")
    assert "2 ranks on cpu" in first
    assert second == ""


@pytest.mark.timeout(2 * PATIENCE)
@pytest.mark.slow
def test_two_tasks_of_srun_as_nodes(tmp_path: Path) -> None:
    """Each starts the ranks of its node; both nodes are this machine."""
    nodes = ["config.DISTRIBUTED.NUM_NODES=2", "config.DISTRIBUTED.NUM_PROC_PER_NODE=2"]
    task = {"SLURM_STEP_ID": "0", "SLURM_JOB_ID": "7", "SLURM_STEP_NUM_TASKS": "2",
            "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NODELIST": "127.0.0.1",
            "MASTER_PORT": str(free_port())}  # fmt: skip
    both = [(nodes, {**task, "SLURM_PROCID": each, "SLURM_NODEID": each}) for each in ("0", "1")]
    first, second = _run_both(tmp_path, both)
    text = "2 nodes of 2 ranks, started by srun; rendezvous at 127.0.0.1"
    assert first.startswith(f"launch: {text}\n")
    assert "4 ranks on cpu" in first
    assert second == ""
