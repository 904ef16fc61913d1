"""Start the processes of a run on this machine, or join those that are started already."""

from __future__ import annotations

import os

from sslengine import startup
from sslengine.config.facts import world_size
from sslengine.config.options import DistributedOptions
from sslengine.config.resolve import Resolved
from sslengine.config.sections import read
from sslengine.distributed.elastic import start_processes
from sslengine.distributed.meeting import Place, meet, ports_from
from sslengine.errors import ConfigError, readable
from sslengine.launch.folder import expect_run_folder
from sslengine.launch.pixels import settle_pixels
from sslengine.launch.plan import Plan, make_plan
from sslengine.launch.rank import run_rank
from sslengine.launch.started import Started


def launch(resolved: Resolved) -> None:
    """Run to the end; an error of any rank is raised here."""
    expect_run_folder(resolved.config)
    options = read(resolved.config, DistributedOptions)
    plan = make_plan(options, resolved.node_id)
    resolved = settle_pixels(resolved, plan.speaks)
    if plan.speaks:
        print(f"launch: {readable(plan.text)}", flush=True)  # noqa: T201
    if plan.how == "here":
        run_rank(resolved, join=False)
    elif plan.how == "node":
        run_node(resolved, plan)
    elif plan.rank is None:
        run_rank(resolved, join=True)
    else:
        place = _meet_ranks(plan.rank, options.RENDEZVOUS_MINUTES)
        os.environ.update(plan.rank.as_rank(place.port))
        run_rank(resolved, join=True)  # `place` holds the store that they meet in


def run_node(resolved: Resolved, plan: Plan) -> None:
    """The ranks of this node, below an elastic agent."""
    options = read(resolved.config, DistributedOptions)
    place = _meet_nodes(options, plan) if options.NUM_NODES > 1 else None
    startup.tell(f"starting {options.NUM_PROC_PER_NODE} processes")
    with startup.handed_on():
        start_processes(
            run_rank,
            (resolved, world_size(resolved.config) > 1),
            processes=options.NUM_PROC_PER_NODE,
            nodes=options.NUM_NODES,
            node_id=plan.node,
            run_id=plan.token,
            endpoint=place.endpoint if place else "",
            max_restarts=options.MAX_RESTARTS,
        )


def _meet_nodes(options: DistributedOptions, plan: Plan) -> Place:
    if not plan.host:
        raise ConfigError("config.DISTRIBUTED.RUN_ID: several nodes need host:port of the first.")
    ports = [plan.port] if plan.one_port else ports_from(plan.port)
    return meet(
        plan.host, ports, plan.token, plan.node, options.NUM_NODES, options.RENDEZVOUS_MINUTES,
        noun="node",
    )  # fmt: skip


def _meet_ranks(rank: Started, minutes: float) -> Place:
    ports = ports_from(rank.port)
    return meet(rank.host, ports, rank.token, rank.number, rank.count, minutes, noun="rank")
