from __future__ import annotations

import os
from typing import Any

import pytest

from sslengine.distributed.meeting import Place
from sslengine.errors import ConfigError, LaunchError
from sslengine.launch import local
from tests.config.recipes import resolved


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    made: list[Any] = []
    for name in list(os.environ):
        if name in ("RANK", "WORLD_SIZE") or name.startswith(("SLURM_", "OMPI_", "PMI_")):
            monkeypatch.delenv(name)
    monkeypatch.setattr(local, "run_rank", lambda run, join: made.append(("here", join)))
    monkeypatch.setattr(local, "start_processes", lambda *a, **kw: made.append(("start", kw)))
    return made


def test_one_process_runs_here_without_a_group(calls: list[Any]) -> None:
    local.launch(resolved())
    assert calls == [("here", False)]


def test_started_by_torchrun_it_joins(calls: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    local.launch(resolved(DISTRIBUTED__NUM_PROC_PER_NODE=2))
    assert calls == [("here", True)]
    with pytest.raises(LaunchError, match="2 processes were started, but the config is for 1"):
        local.launch(resolved())


def test_several_processes_are_started_and_meet_on_this_machine(calls: list[Any]) -> None:
    local.launch(resolved(DISTRIBUTED__NUM_PROC_PER_NODE=3))
    ((_, how),) = calls
    assert (how["processes"], how["nodes"], how["endpoint"]) == (3, 1, "")


def test_several_nodes_need_the_first_ones_address(calls: list[Any]) -> None:
    two = {"DISTRIBUTED__NUM_NODES": 2}
    with pytest.raises(ConfigError, match="2 nodes require host:port of the first one, got 'auto'"):
        local.launch(resolved(**two))


def test_nodes_meet_before_their_ranks_are_started(
    calls: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def meet(host: str, ports: list[int], *others: Any) -> Place:
        calls.append(("meet", (host, ports, *others)))
        return Place(host, ports[0], None)  # type: ignore[arg-type]

    monkeypatch.setattr(local, "meet", meet)
    local.launch(resolved(DISTRIBUTED__NUM_NODES=2, DISTRIBUTED__RUN_ID="node7:29500"))
    met, (_, how) = calls
    assert met == ("meet", ("node7", [29500], "node7:29500", 0, 2, 10.0, "node"))
    assert (how["endpoint"], how["nodes"], how["node_id"]) == ("node7:29500", 2, 0)


def test_started_by_srun_the_ranks_meet_and_join(
    calls: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    srun = {"SLURM_STEP_ID": "0", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2",
            "SLURM_JOB_ID": "7", "SLURM_STEP_NODELIST": "n[3-4]", "SLURM_STEP_NUM_NODES": "2"}  # fmt: skip
    for name, value in srun.items():
        monkeypatch.setenv(name, value)
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "")  # to be put back at the end
        monkeypatch.delenv(name)

    def find(host: str, ports: list[int], *others: Any) -> Place:
        assert (host, *others) == ("n3", "job 7.0.0", 1, 10.0, "rank")
        return Place(host, ports[1], None)  # type: ignore[arg-type]

    monkeypatch.setattr(local, "find", find)
    local.launch(resolved(DISTRIBUTED__NUM_PROC_PER_NODE=2))
    assert calls == [("here", True)]
    assert (os.environ["RANK"], os.environ["WORLD_SIZE"]) == ("1", "2")
    assert os.environ["MASTER_ADDR"] == "n3"


def test_one_line_says_what_was_chosen(
    calls: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    local.launch(resolved())
    local.launch(resolved(DISTRIBUTED__NUM_PROC_PER_NODE=3))
    assert capsys.readouterr().out == "launch: one process\nlaunch: 3 ranks on this node\n"


def test_a_node_id_outside_the_nodes(calls: list[Any]) -> None:
    run = resolved(DISTRIBUTED__NUM_NODES=2, DISTRIBUTED__RUN_ID="node7:29500")
    with pytest.raises(ConfigError, match="node_id: expected 0 to 1, got 5"):
        local.launch(type(run)(**{**run.__dict__, "node_id": 5}))
