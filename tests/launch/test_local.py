from __future__ import annotations

from typing import Any

import pytest

from sslengine.errors import ConfigError, LaunchError
from sslengine.launch import local
from tests.config.recipes import resolved


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    made: list[Any] = []
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
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
    with pytest.raises(LaunchError, match="2 processes were started, and the config is for 1"):
        local.launch(resolved())


def test_several_processes_are_started_on_a_free_port(calls: list[Any]) -> None:
    local.launch(resolved(DISTRIBUTED__NUM_PROC_PER_NODE=3))
    ((_, how),) = calls
    assert (how["processes"], how["nodes"], how["endpoint"]) == (3, 1, "localhost:0")


def test_several_nodes_need_the_first_ones_address(calls: list[Any]) -> None:
    two = {"DISTRIBUTED__NUM_NODES": 2}
    with pytest.raises(ConfigError, match="2 nodes need host:port of the first one, got 'auto'"):
        local.launch(resolved(**two))
    local.launch(resolved(**two, DISTRIBUTED__RUN_ID="node7:29500"))
    ((_, how),) = calls
    assert (how["endpoint"], how["nodes"], how["node_id"]) == ("node7:29500", 2, 0)


def test_a_node_id_outside_the_nodes(calls: list[Any]) -> None:
    run = resolved(DISTRIBUTED__NUM_NODES=2, DISTRIBUTED__RUN_ID="node7:29500")
    with pytest.raises(ConfigError, match="node_id: expected 0 to 1, got 5"):
        local.launch(type(run)(**{**run.__dict__, "node_id": 5}))
