"""Start the processes of a run on this machine, or join those that are started already."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping

from sslengine.config.facts import world_size
from sslengine.config.options import DistributedOptions
from sslengine.config.resolve import Resolved
from sslengine.config.sections import read
from sslengine.distributed.elastic import start_processes
from sslengine.errors import ConfigError, LaunchError
from sslengine.launch.rank import run_rank


def launch(resolved: Resolved) -> None:
    """Run to the end; an error of any rank is raised here."""
    options = read(resolved.config, DistributedOptions)
    ranks = world_size(resolved.config)
    if is_started(os.environ):
        _same_size(ranks, int(os.environ["WORLD_SIZE"]))
        run_rank(resolved, join=True)
    elif ranks == 1:
        run_rank(resolved, join=False)
    else:
        start_processes(
            run_rank,
            (resolved, True),
            processes=options.NUM_PROC_PER_NODE,
            nodes=options.NUM_NODES,
            node_id=resolved.node_id,
            endpoint=_endpoint(options, resolved.node_id),
            run_id=options.RUN_ID if options.RUN_ID != "auto" else uuid.uuid4().hex,
            max_restarts=options.MAX_RESTARTS,
        )


def is_started(environment: Mapping[str, str]) -> bool:
    """Has torchrun, or something that speaks like it, started this process as one rank?"""
    return "RANK" in environment and "WORLD_SIZE" in environment


def _same_size(configured: int, started: int) -> None:
    if configured != started:
        raise LaunchError(
            f"{started} processes were started, and the config is for {configured} "
            f"(DISTRIBUTED.NUM_NODES x NUM_PROC_PER_NODE): learning rates and batch sizes follow "
            f"from it. Set config.DISTRIBUTED.NUM_PROC_PER_NODE to what was started on each node."
        )


def _endpoint(options: DistributedOptions, node_id: int) -> str:
    if options.NUM_NODES == 1:
        return "localhost:0"  # a free port
    host, _, port = options.RUN_ID.rpartition(":")
    if not host or not port.isdigit():
        raise ConfigError(
            f"config.DISTRIBUTED.RUN_ID: {options.NUM_NODES} nodes need host:port of the first "
            f"one, got {options.RUN_ID!r}. Give each node its node_id (0, 1, ...)."
        )
    if not 0 <= node_id < options.NUM_NODES:
        raise ConfigError(f"node_id: expected 0 to {options.NUM_NODES - 1}, got {node_id}.")
    return options.RUN_ID
