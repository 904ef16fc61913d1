"""Decide by config and environment how a run is started; describe it in one line."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from sslengine.config.options import DistributedOptions
from sslengine.errors import ConfigError, LaunchError
from sslengine.launch.started import Meeting, Started, expect_meeting, is_rank, started
from sslengine.trust import expect_trust


@dataclass(frozen=True)
class Plan:
    # here: this process is the whole run. rank: this process is one of several ranks. node: this
    # process starts the ranks of its node.
    how: Literal["here", "rank", "node"]
    text: str
    node: int = 0
    # The rendezvous of nodes, and of ranks without MASTER_ADDR and MASTER_PORT.
    meeting: Meeting | None = None
    rank: Started | None = None
    # Whether this process prints: the first one does.
    prints: bool = True


def make_plan(
    options: DistributedOptions, node_id: int, environment: Mapping[str, str] = os.environ
) -> Plan:
    nodes, each = options.NUM_NODES, options.NUM_PROC_PER_NODE
    if is_rank(environment):
        count = int(environment["WORLD_SIZE"])
        if count != nodes * each:
            raise _wrong_size(nodes * each, count)
        by = "torchrun" if "TORCHELASTIC_RUN_ID" in environment else "RANK and WORLD_SIZE"
        return Plan("rank", _joined(count, by), prints=environment["RANK"] == "0")
    others = started(environment)
    if others is not None:
        return _with_others(others, nodes, each)
    if nodes * each == 1:
        return Plan("here", "one process")
    if nodes == 1:
        return Plan("node", f"{each} ranks on this node")
    return _by_hand(options, node_id)


def _with_others(others: Started, nodes: int, each: int) -> Plan:
    first = others.number == 0
    if others.count == nodes * each:
        text = _joined(others.count, others.by)
        return Plan("rank", text, meeting=expect_meeting(others), rank=others, prints=first)
    if others.count == others.nodes == nodes:  # srun, one task per node
        meeting = expect_meeting(others)
        text = f"{nodes} nodes of {_joined(each, others.by)}; rendezvous at {meeting.host}"
        return Plan("node", text, node=others.node, meeting=meeting, prints=first)
    raise _wrong_size(nodes * each, others.count)


def _joined(count: int, by: str) -> str:
    return f"{_ranks(count)}, started by {by}"


def _ranks(count: int) -> str:
    return f"{count} rank{'s' if count > 1 else ''}"


def _wrong_size(configured: int, started: int) -> LaunchError:
    return LaunchError(
        f"{started} processes were started, but the config is for {configured} "
        f"(DISTRIBUTED.NUM_NODES x NUM_PROC_PER_NODE): learning rates and batch sizes depend "
        f"on it. Set config.DISTRIBUTED.NUM_PROC_PER_NODE to the processes of each node."
    )


def _by_hand(options: DistributedOptions, node_id: int) -> Plan:
    nodes, where = options.NUM_NODES, "config.DISTRIBUTED.RUN_ID"
    chosen = options.RUN_ID
    expect_trust(f"the run would connect to {chosen!r} and obey it", where, where, chosen)
    host, _, port = options.RUN_ID.rpartition(":")
    if not host or not port.isdigit():
        raise ConfigError(
            f"config.DISTRIBUTED.RUN_ID: {nodes} nodes require host:port of the first one, got "
            f"{options.RUN_ID!r}. Set node_id (0, 1, ...) on each node; or start the command on "
            f"all nodes with srun or torchrun, or set config.SLURM.USE_SLURM=true."
        )
    if not 0 <= node_id < nodes:
        raise ConfigError(f"node_id: expected 0 to {nodes - 1}, got {node_id}.")
    text = (
        f"node {node_id} of {nodes}, with {_ranks(options.NUM_PROC_PER_NODE)}; rendezvous at "
        f"{options.RUN_ID}"
    )
    return Plan("node", text, node=node_id, meeting=Meeting(host, [int(port)], options.RUN_ID))
