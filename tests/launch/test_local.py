"""What is started for a plan, through the real `launch`."""

from __future__ import annotations

import os
from typing import Any

import pytest

from sslengine.errors import LaunchError
from sslengine.launch import local
from tests.config.recipes import resolved


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
