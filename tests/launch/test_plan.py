"""What a process does in a run, by the variables of its launcher."""

from __future__ import annotations

import os
from typing import Any

import pytest

from sslengine.config.options import DistributedOptions
from sslengine.errors import ConfigError, LaunchError
from sslengine.launch import local
from sslengine.launch.plan import Plan, first_host, is_one_of_several, make_plan
from tests.config.recipes import resolved

TORCHRUN = {"RANK": "1", "WORLD_SIZE": "4", "TORCHELASTIC_RUN_ID": "x"}


def _plan(nodes: int, each: int, environment: dict[str, str]) -> Plan:
    return make_plan(DistributedOptions(NUM_NODES=nodes, NUM_PROC_PER_NODE=each), environment)


def _srun(number: int, count: int, nodes: int, **others: str) -> dict[str, str]:
    return {
        "SLURM_STEP_ID": "0", "SLURM_PROCID": str(number), "SLURM_STEP_NUM_TASKS": str(count),
        "SLURM_NTASKS": "99", "SLURM_LOCALID": str(number % max(1, count // nodes)),
        "SLURM_STEP_NUM_NODES": str(nodes), "SLURM_NODEID": str(number * nodes // count),
        "SLURM_STEP_NODELIST": f"n[0-{nodes - 1}]", "SLURM_JOB_ID": "7", **others,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("nodes", "each", "environment", "how", "text"),
    [
        (1, 1, {}, "here", "one process"),
        (1, 4, {}, "node", "4 ranks on this node"),
        (1, 4, TORCHRUN, "rank", "4 ranks, started by torchrun"),
        (2, 2, TORCHRUN, "rank", "4 ranks, started by torchrun"),
        (1, 1, {"RANK": "0", "WORLD_SIZE": "1"}, "rank", "1 rank, started by RANK and WORLD_SIZE"),
        (2, 2, _srun(0, 4, 2), "rank", "4 ranks, started by srun"),
        (2, 1, _srun(0, 2, 2), "rank", "2 ranks, started by srun"),
        (2, 2, _srun(1, 2, 2), "node", "2 nodes of 2 ranks, started by srun; rendezvous at n0"),
        (1, 8, _srun(0, 1, 1), "node", "8 ranks on this node"),
        (1, 1, _srun(0, 1, 1), "here", "one process"),
    ],
)  # fmt: skip
def test_what_is_chosen(
    nodes: int, each: int, environment: dict[str, str], how: str, text: str
) -> None:
    plan = _plan(nodes, each, environment)
    assert (plan.how, plan.text) == (how, text)


@pytest.mark.parametrize("environment", [TORCHRUN, _srun(0, 4, 2), _srun(0, 2, 1)])
def test_never_alone_where_several_were_started(environment: dict[str, str]) -> None:
    assert is_one_of_several(environment)
    with pytest.raises(LaunchError, match=r"processes were started, but the config is for 1"):
        _plan(1, 1, environment)


def test_one_of_them_says_it() -> None:
    srun = [_plan(2, 2, _srun(each, 4, 2)).prints for each in range(4)]
    assert srun == [True, False, False, False]
    assert not _plan(1, 4, TORCHRUN).prints


def test_several_nodes_need_a_launcher() -> None:
    with pytest.raises(ConfigError, match=r"config.DISTRIBUTED.NUM_NODES.*torchrun or srun"):
        _plan(2, 8, {})


def test_a_task_of_srun_is_a_rank_at_a_port_of_its_step() -> None:
    found = dict(_plan(2, 4, _srun(5, 8, 2)).variables)
    port = int(found.pop("MASTER_PORT"))
    assert 20000 <= port < 32000
    assert found == {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "MASTER_ADDR": "n0"}
    requeued = _plan(2, 4, _srun(5, 8, 2, SLURM_RESTART_COUNT="2")).variables
    assert requeued["MASTER_PORT"] != str(port)
    given = _plan(2, 4, _srun(5, 8, 2, MASTER_PORT="4")).variables
    assert given["MASTER_PORT"] == "4"


def test_the_nodes_of_a_step_meet_at_the_first() -> None:
    plan = _plan(2, 2, _srun(1, 2, 2, MASTER_PORT="4", SLURM_RESTART_COUNT="2"))
    assert (plan.node, plan.endpoint, plan.run_id) == (1, "n0:4", "job 7.0.2")


def test_tasks_of_one_node_meet_on_it_and_not_on_its_network() -> None:
    assert _plan(1, 2, _srun(0, 2, 1)).variables["MASTER_ADDR"] == "localhost"


@pytest.mark.parametrize("left_out", ["SLURM_STEP_ID", "SLURM_PROCID"])
def test_a_batch_script_is_no_task(left_out: str) -> None:
    found = {key: value for key, value in _srun(0, 8, 2).items() if key != left_out}
    assert not is_one_of_several(found)
    assert _plan(1, 1, found).how == "here"


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


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    made: list[Any] = []
    for name in list(os.environ):
        if name in ("RANK", "WORLD_SIZE") or name.startswith("SLURM_"):
            monkeypatch.delenv(name)
    monkeypatch.setattr(local, "run_rank", lambda run, join: made.append(("here", join)))
    monkeypatch.setattr(local, "start_processes", lambda *a, **kw: made.append(("start", kw)))
    return made


def _set_srun(monkeypatch: pytest.MonkeyPatch) -> None:
    """Task 1 of 2, each on a node of its own."""
    srun = {"SLURM_STEP_ID": "0", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2",
            "SLURM_JOB_ID": "7", "SLURM_STEP_NODELIST": "n[3-4]", "SLURM_STEP_NUM_NODES": "2",
            "SLURM_NODEID": "1", "MASTER_PORT": "29500"}  # fmt: skip
    for name, value in srun.items():
        monkeypatch.setenv(name, value)


def test_started_by_torchrun_it_joins(calls: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    local.launch(resolved(DISTRIBUTED__NUM_PROC_PER_NODE=2))
    assert calls == [("here", True)]
    with pytest.raises(LaunchError, match="2 processes were started, but the config is for 1"):
        local.launch(resolved())


def test_nodes_that_srun_started_meet_at_the_first(
    calls: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    _set_srun(monkeypatch)
    local.launch(resolved(DISTRIBUTED__NUM_NODES=2, DISTRIBUTED__NUM_PROC_PER_NODE=4))
    ((_, how),) = calls
    assert (how["endpoint"], how["nodes"], how["node_id"]) == ("n3:29500", 2, 1)
    assert how["processes"] == 4


def test_ranks_that_srun_started_join(calls: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    _set_srun(monkeypatch)
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR"):
        monkeypatch.setenv(name, "")  # to be put back at the end
        monkeypatch.delenv(name)
    local.launch(resolved(DISTRIBUTED__NUM_PROC_PER_NODE=2))
    assert calls == [("here", True)]
    assert (os.environ["RANK"], os.environ["WORLD_SIZE"]) == ("1", "2")
    assert os.environ["MASTER_ADDR"] == "n3"
