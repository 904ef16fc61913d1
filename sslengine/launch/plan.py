"""Choose from the environment how this process takes part in a run; describe it in one line.

    torchrun      RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT (or set by you): a rank
    srun          SLURM_PROCID, SLURM_STEP_NUM_TASKS, ...: a rank, or a node that starts its ranks
    neither       the whole run: one process, or a node that starts its ranks

A SLURM batch script is not a job step: a command in it without srun runs once, as one process.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from sslengine.config.options import DistributedOptions
from sslengine.errors import ConfigError, LaunchError

_FIRST_PORT, _PORTS = 20000, 12000  # below the ports of outgoing connections


@dataclass(frozen=True)
class Plan:
    # here: this process is the whole run. rank: this process is one of several ranks. node: this
    # process starts the ranks of its node.
    how: Literal["here", "rank", "node"]
    text: str
    node: int = 0
    # host:port of the first node, where several nodes meet, and a name of this start of the run.
    endpoint: str = ""
    run_id: str = "local"
    # torchrun's variables, for a rank that srun started.
    variables: Mapping[str, str] = field(default_factory=dict)
    # Whether this process prints: the first one does.
    prints: bool = True


def make_plan(options: DistributedOptions, environment: Mapping[str, str] = os.environ) -> Plan:
    nodes, each = options.NUM_NODES, options.NUM_PROC_PER_NODE
    if _is_rank(environment):
        count = int(environment["WORLD_SIZE"])
        _expect_count(count, nodes * each)
        by = "torchrun" if "TORCHELASTIC_RUN_ID" in environment else "RANK and WORLD_SIZE"
        return Plan("rank", _describe(count, by), prints=environment["RANK"] == "0")
    if _count_tasks(environment) > 1:
        return _plan_task(nodes, each, environment)
    if nodes > 1:
        raise ConfigError(
            f"config.DISTRIBUTED.NUM_NODES: a run on {nodes} nodes is started on all of them by "
            f"torchrun or srun, or submitted with config.SLURM.USE_SLURM=true (docs/slurm.md)."
        )
    if each == 1:
        return Plan("here", "one process")
    return Plan("node", f"{each} ranks on this node")


def is_one_of_several(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether torchrun or srun started this process together with others."""
    return _is_rank(environment) or _count_tasks(environment) > 1


def first_host(nodes: str) -> str:
    """Return the first of SLURM's list of nodes: `node[003-7,9],other` -> node003."""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])*", nodes)
    return re.sub(r"\[(\d+)[^\]]*\]", r"\1", first.group() if first else "")


def _is_rank(environment: Mapping[str, str]) -> bool:
    return "RANK" in environment and "WORLD_SIZE" in environment


def _count_tasks(environment: Mapping[str, str]) -> int:
    """Return the number of tasks that srun started, this process among them; 0: it did not."""
    if not environment.get("SLURM_STEP_ID") or "SLURM_PROCID" not in environment:
        return 0
    return int(_first_set(environment, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS") or 1)


def _plan_task(nodes: int, each: int, environment: Mapping[str, str]) -> Plan:
    """Plan a task of srun: of as many as the run has ranks, or as it has nodes."""
    number, count = int(environment["SLURM_PROCID"]), _count_tasks(environment)
    places = int(_first_set(environment, "SLURM_STEP_NUM_NODES", "SLURM_JOB_NUM_NODES") or 1)
    host = first_host(_first_set(environment, "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"))
    host = host if places > 1 else "localhost"
    step = f"{environment.get('SLURM_JOB_ID', '')}.{environment['SLURM_STEP_ID']}"
    start = f"job {step}.{environment.get('SLURM_RESTART_COUNT', '0')}"
    port = environment.get("MASTER_PORT") or str(_FIRST_PORT + zlib.crc32(start.encode()) % _PORTS)
    if count == nodes and count == places and each > 1:
        node = int(environment.get("SLURM_NODEID", 0))
        text = f"{nodes} nodes of {_describe(each, 'srun')}; rendezvous at {host}"
        return Plan("node", text, node, f"{host}:{port}", start, prints=number == 0)
    _expect_count(count, nodes * each)
    variables = {
        "RANK": str(number),
        "WORLD_SIZE": str(count),
        "LOCAL_RANK": environment.get("SLURM_LOCALID", "0"),
        "MASTER_ADDR": host,
        "MASTER_PORT": port,
    }
    return Plan("rank", _describe(count, "srun"), variables=variables, prints=number == 0)


def _describe(count: int, by: str) -> str:
    return f"{count} rank{'s' if count > 1 else ''}, started by {by}"


def _expect_count(started: int, configured: int) -> None:
    if started != configured:
        raise LaunchError(
            f"{started} processes were started, but the config is for {configured} "
            f"(DISTRIBUTED.NUM_NODES x NUM_PROC_PER_NODE): learning rates and batch sizes depend "
            f"on it. Set config.DISTRIBUTED.NUM_PROC_PER_NODE to the processes of each node."
        )


def _first_set(environment: Mapping[str, str], *names: str) -> str:
    return next((environment[name] for name in names if environment.get(name)), "")
