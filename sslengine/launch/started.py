"""Read from the environment which launcher started this process, and as which rank.

    torchrun       RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT; also set by hand
    srun           SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_LOCALID, SLURM_STEP_NODELIST, ...
    mpirun         OMPI_COMM_WORLD_RANK, ..., or PMI_RANK, PMI_SIZE, MPI_LOCALRANKID

A SLURM batch script is not a job step: a command in it without srun runs once, as one process.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sslengine.errors import LaunchError

_FIRST_PORT, _PORTS = 20000, 12000  # below the ports of outgoing connections
_TRIES = 16  # ports


class Meeting(NamedTuple):
    host: str  # of process 0
    ports: Sequence[int]  # the first free port is used
    token: str  # equal in all processes of the run, different in other runs


@dataclass(frozen=True)
class Started:
    by: str
    number: int
    count: int
    local: int  # the rank within this node
    meeting: Meeting | None  # None: the environment does not say
    node: int = 0
    nodes: int = 1

    def as_rank(self, host: str, port: int) -> dict[str, str]:
        """These values as torchrun's variables."""
        return {
            "RANK": str(self.number),
            "WORLD_SIZE": str(self.count),
            "LOCAL_RANK": str(self.local),
            "MASTER_ADDR": host,
            "MASTER_PORT": str(port),
        }


def is_rank(environment: Mapping[str, str]) -> bool:
    """Whether torchrun, or a launcher with the same variables, started this process as a rank."""
    return "RANK" in environment and "WORLD_SIZE" in environment


def started(environment: Mapping[str, str]) -> Started | None:
    """Return how srun or mpirun started this process; None: by hand, or as the only process."""
    step, mpi = _srun(environment), _mpi(environment)
    # mpirun starts its daemons by srun, so its ranks see srun's variables; srun may set PMI's.
    chosen = mpi if mpi and (step is None or step.count != mpi.count) else step
    return chosen if chosen and chosen.count > 1 else None


def _srun(environment: Mapping[str, str]) -> Started | None:
    step = environment.get("SLURM_STEP_ID", "")
    if not step or "SLURM_PROCID" not in environment:
        return None
    job = environment.get("SLURM_JOB_ID", "")
    token = f"job {job}.{step}.{environment.get('SLURM_RESTART_COUNT', '0')}"
    nodes = int(_first(environment, "SLURM_STEP_NUM_NODES", "SLURM_JOB_NUM_NODES") or 1)
    host = first_host(_first(environment, "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"))
    return Started(
        by="srun",
        number=int(environment["SLURM_PROCID"]),
        count=int(_first(environment, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS") or 1),
        local=int(environment.get("SLURM_LOCALID", 0)),
        meeting=_meeting(environment, host if nodes > 1 else "localhost", token),
        node=int(environment.get("SLURM_NODEID", 0)),
        nodes=nodes,
    )


def _mpi(environment: Mapping[str, str]) -> Started | None:
    number = _first(environment, "OMPI_COMM_WORLD_RANK", "PMI_RANK")
    count = _first(environment, "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
    if not number or not count:
        return None
    local = _first(environment, "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
    on_node = _first(environment, "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
    # On one node all processes have the same parent; on several nodes, the port is the token.
    meeting = None
    if on_node == count:
        host = environment.get("MASTER_ADDR", "localhost")
        meeting = _meeting(environment, host, f"mpirun {os.getppid()}")
    elif "MASTER_ADDR" in environment and "MASTER_PORT" in environment:
        token = f"mpirun {environment['MASTER_PORT']}"
        meeting = _meeting(environment, environment["MASTER_ADDR"], token)
    return Started("mpirun", int(number), int(count), int(local or 0), meeting)


def expect_meeting(started: Started) -> Meeting:
    if started.meeting is not None:
        return started.meeting
    raise LaunchError(
        f"{started.by} started {started.count} processes on several nodes without an address of "
        f"the first one: set MASTER_ADDR to its host and MASTER_PORT to a free port."
    )


def first_host(nodes: str) -> str:
    """`node[003-7,9],other` -> node003."""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])*", nodes)
    return re.sub(r"\[(\d+)[^\]]*\]", r"\1", first.group() if first else "")


def _first(environment: Mapping[str, str], *names: str) -> str:
    return next((environment[name] for name in names if environment.get(name)), "")


def _meeting(environment: Mapping[str, str], host: str, token: str) -> Meeting | None:
    given = environment.get("MASTER_PORT", "")
    port = int(given) if given else _FIRST_PORT + zlib.crc32(token.encode()) % _PORTS
    return Meeting(host, tries(port), token) if host else None


def tries(port: int) -> Sequence[int]:
    """Return the ports to try in turn, starting with this one."""
    return range(port, port + _TRIES)
