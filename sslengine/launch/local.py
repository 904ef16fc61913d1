"""Start the processes of a run on this machine, or join processes that were started already."""

from __future__ import annotations

import os

from sslengine import startup
from sslengine.checkpoint.contents import expect_no_links_out
from sslengine.config.facts import world_size
from sslengine.config.options import DistributedOptions
from sslengine.config.resolve import Resolved
from sslengine.config.sections import read
from sslengine.distributed.elastic import start_processes
from sslengine.distributed.meeting import find, meet
from sslengine.errors import SSLEngineError, readable
from sslengine.launch.folder import expect_run_folder, make_run_folder, remove_unused
from sslengine.launch.pixels import settle_pixels
from sslengine.launch.plan import Plan, make_plan
from sslengine.launch.rank import run_rank


def launch(resolved: Resolved) -> None:
    """Run to the end; raise the error of any rank. One before a run has begun leaves no folder."""
    folder = expect_run_folder(resolved.config)
    expect_no_links_out(folder, training=resolved.engine_name == "train")
    options = read(resolved.config, DistributedOptions)
    plan = make_plan(options, resolved.node_id)
    resolved = settle_pixels(resolved, plan.prints)
    if plan.prints:
        print(f"launch: {readable(plan.text)}", flush=True)  # noqa: T201
    new = make_run_folder(resolved.config)
    try:
        _run(resolved, plan, options)
    except SSLEngineError:
        remove_unused(new)
        raise


def _run(resolved: Resolved, plan: Plan, options: DistributedOptions) -> None:
    if plan.how == "node":
        run_node(resolved, plan)
        return
    if plan.rank is not None and plan.meeting is not None:
        minutes = options.RENDEZVOUS_MINUTES
        place = find(*plan.meeting, plan.rank.number, minutes, "rank")  # keeps their store alive
        os.environ.update(plan.rank.as_rank(place.host, place.port))
    run_rank(resolved, join=plan.how == "rank")


def run_node(resolved: Resolved, plan: Plan) -> None:
    """Start the ranks of this node under an elastic agent."""
    options = read(resolved.config, DistributedOptions)
    nodes, minutes = options.NUM_NODES, options.RENDEZVOUS_MINUTES
    place = None
    if plan.meeting is not None and nodes > 1:
        place = meet(*plan.meeting, plan.node, nodes, minutes, "node")
    startup.announce(f"starting {options.NUM_PROC_PER_NODE} processes")
    start_processes(
        run_rank,
        (resolved, world_size(resolved.config) > 1),
        processes=options.NUM_PROC_PER_NODE,
        nodes=nodes,
        node_id=plan.node,
        run_id=plan.meeting.token if plan.meeting else options.RUN_ID,
        endpoint=place.endpoint if place else "",
        max_restarts=options.MAX_RESTARTS,
    )
