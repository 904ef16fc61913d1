from __future__ import annotations

import pytest

from sslengine.config.options import DistributedOptions
from sslengine.errors import LaunchError
from sslengine.launch.plan import Plan, make_plan

TORCHRUN = {"RANK": "1", "WORLD_SIZE": "4", "TORCHELASTIC_RUN_ID": "x"}


def _plan(nodes: int, each: int, environment: dict[str, str], run_id: str = "auto") -> Plan:
    options = DistributedOptions(NUM_NODES=nodes, NUM_PROC_PER_NODE=each, RUN_ID=run_id)
    return make_plan(options, 0, environment)


def _srun(number: int, count: int, nodes: int) -> dict[str, str]:
    return {
        "SLURM_STEP_ID": "0", "SLURM_PROCID": str(number), "SLURM_STEP_NUM_TASKS": str(count),
        "SLURM_STEP_NUM_NODES": str(nodes), "SLURM_NODEID": str(number * nodes // count),
        "SLURM_STEP_NODELIST": f"n[0-{nodes - 1}]", "SLURM_JOB_ID": "7",
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
    with pytest.raises(LaunchError, match=r"processes were started, but the config is for 1"):
        _plan(1, 1, environment)


def test_one_of_them_says_it() -> None:
    assert [_plan(2, 2, _srun(each, 4, 2)).prints for each in range(4)] == [
        True,
        False,
        False,
        False,
    ]
    assert not _plan(1, 4, TORCHRUN).prints


def test_nodes_by_hand() -> None:
    plan = _plan(2, 8, {}, run_id="node7:29500")
    assert plan.text == "node 0 of 2, with 8 ranks; rendezvous at node7:29500"
    assert plan.meeting == ("node7", [29500], "node7:29500")
