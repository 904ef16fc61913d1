from __future__ import annotations

import pytest

from sslengine.errors import LaunchError
from sslengine.launch.started import Started, expect_meeting, first_host, started

SRUN = {
    "SLURM_JOB_ID": "17", "SLURM_STEP_ID": "0", "SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_NTASKS": "99", "SLURM_LOCALID": "1", "SLURM_NODEID": "1", "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NODELIST": "node[03-04]",
}  # fmt: skip
OMPI = {
    "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}  # fmt: skip


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("node1", "node1"),
        ("node[003-7,9],other", "node003"),
        ("a,b", "a"),
        ("gpu[12]-ib", "gpu12-ib"),
        ("r[1-2]n[4-8],x", "r1n4"),
        ("", ""),
    ],
)
def test_the_first_of_a_list_of_nodes(nodes: str, first: str) -> None:
    assert first_host(nodes) == first


def test_a_task_of_srun() -> None:
    task = started(SRUN)
    assert task is not None
    assert (task.by, task.number, task.count, task.local) == ("srun", 5, 8, 1)
    host, ports, token = expect_meeting(task)
    assert (task.node, task.nodes, host, token) == (1, 2, "node03", "job 17.0.0")
    assert 20000 <= ports[0] < 32000
    assert len(ports) == 16
    assert task.as_rank("node03", 4) == {
        "RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "MASTER_ADDR": "node03",
        "MASTER_PORT": "4",
    }  # fmt: skip


def test_tasks_of_one_node_meet_on_it_and_not_on_its_network() -> None:
    task = started({**SRUN, "SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NODELIST": "node03"})
    assert task is not None
    assert expect_meeting(task).host == "localhost"


def test_a_requeued_job_meets_under_another_token() -> None:
    again = started({**SRUN, "SLURM_RESTART_COUNT": "2"})
    assert again is not None
    assert expect_meeting(again).token == "job 17.0.2"


@pytest.mark.parametrize("left_out", ["SLURM_STEP_ID", "SLURM_PROCID"])
def test_a_batch_script_is_no_task(left_out: str) -> None:
    assert started({key: value for key, value in SRUN.items() if key != left_out}) is None


def test_the_only_task_is_started_as_if_by_hand() -> None:
    """An interactive shell below srun: what it runs may start its own ranks."""
    assert started({**SRUN, "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}) is None


def test_a_rank_of_mpirun_on_one_node() -> None:
    rank = started(OMPI)
    assert rank is not None
    assert (rank.by, rank.number, rank.count, rank.local) == ("mpirun", 1, 2, 1)
    assert expect_meeting(rank).host == "localhost"
    pmi = started(
        {"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "3", "MPI_LOCALNRANKS": "4"}
    )
    assert pmi is not None
    assert (pmi.number, pmi.count, pmi.local) == (3, 4, 3)
    assert expect_meeting(pmi).host == "localhost"


def test_on_several_nodes_mpirun_must_be_told_the_place() -> None:
    several = {**OMPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}
    rank = started(several)
    assert rank is not None
    with pytest.raises(LaunchError, match="set MASTER_ADDR .* MASTER_PORT"):
        expect_meeting(rank)
    told = started({**several, "MASTER_ADDR": "a", "MASTER_PORT": "7"})
    assert told is not None
    assert expect_meeting(told) == ("a", range(7, 23), "mpirun 7")


def test_srun_and_mpirun_together() -> None:
    """mpirun's daemons are tasks of srun; srun's tasks may have PMI's variables."""
    daemon = {
        **SRUN,
        "SLURM_STEP_NUM_TASKS": "2",
        "OMPI_COMM_WORLD_RANK": "6",
        "OMPI_COMM_WORLD_SIZE": "8",
    }
    found = started(daemon)
    assert isinstance(found, Started)
    assert (found.by, found.number) == ("mpirun", 6)
    found = started({**SRUN, "PMI_RANK": "5", "PMI_SIZE": "8"})
    assert isinstance(found, Started)
    assert found.by == "srun"
