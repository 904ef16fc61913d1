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
from sslengine.errors import SSLEngineError, readable
from sslengine.launch.auto import settle_channels
from sslengine.launch.folder import expect_run_folder, make_run_folder, remove_unused
from sslengine.launch.plan import Plan, make_plan
from sslengine.launch.rank import run_rank


def launch(resolved: Resolved) -> None:
    """Run to the end; raise the error of any rank. One before a run has begun leaves no folder."""
    folder = expect_run_folder(resolved.config)
    expect_no_links_out(folder, training=resolved.engine_name == "train")
    plan = make_plan(read(resolved.config, DistributedOptions))
    resolved = settle_channels(resolved, plan.prints)
    if plan.prints:
        print(f"launch: {readable(plan.text)}", flush=True)  # noqa: T201
    new = make_run_folder(resolved.config)
    try:
        if plan.how == "node":
            run_node(resolved, plan)
        else:
            os.environ.update(plan.variables)
            run_rank(resolved, join=plan.how == "rank")
    except SSLEngineError:
        remove_unused(new)
        raise


def run_node(resolved: Resolved, plan: Plan) -> None:
    """Start the ranks of this node under an elastic agent."""
    options = read(resolved.config, DistributedOptions)
    startup.announce(f"starting {options.NUM_PROC_PER_NODE} processes")
    start_processes(
        run_rank,
        (resolved, world_size(resolved.config) > 1),
        processes=options.NUM_PROC_PER_NODE,
        nodes=options.NUM_NODES,
        node_id=plan.node,
        run_id=plan.run_id,
        endpoint=plan.endpoint if options.NUM_NODES > 1 else "",
        minutes=options.RENDEZVOUS_MINUTES,
        max_restarts=options.MAX_RESTARTS,
    )
