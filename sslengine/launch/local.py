"""Check runs; then start their processes here, join those that were started, or submit jobs."""

from __future__ import annotations

import os
from collections.abc import Sequence

from sslengine import startup
from sslengine.checkpoint.contents import expect_no_links_out, run_folder
from sslengine.config.facts import world_size
from sslengine.config.options import DistributedOptions
from sslengine.config.resolve import Resolved
from sslengine.config.sections import read
from sslengine.distributed.elastic import start_processes
from sslengine.errors import SSLEngineError, readable
from sslengine.launch.auto import settle_channels
from sslengine.launch.folder import expect_place, expect_run_folder, make_run_folder, remove_unused
from sslengine.launch.plan import Plan, make_plan
from sslengine.launch.preflight import check_run
from sslengine.launch.rank import run_rank
from sslengine.launch.slurm.submit import submit
from sslengine.trust import closed, expect_trust, is_config_trusted


def run_all(runs: Sequence[Resolved]) -> int:
    """Run all of a sweep one after the other, or submit them to SLURM. Return the exit status."""
    submits = any(run.config.SLURM.USE_SLURM for run in runs)
    for run in runs:
        if not submits:
            expect_place(run_folder(run.config))
        with closed(run.opened):
            check_run(run.config, run.engine_name)
            if submits and not is_config_trusted():
                expect_trust(
                    "a job would be submitted as its config says (to run it here: "
                    "config.SLURM.USE_SLURM=false)", "config.SLURM.USE_SLURM",
                )  # fmt: skip
    if submits:
        return submit(runs)
    try:
        for number, run in enumerate(runs):
            if number:
                startup.begin()
            with closed(run.opened):
                launch(run)
    finally:
        if len(runs) > 1 and os.environ.get("RANK", "0") == "0":
            # Imported only now: a run starts without libraries that draw.
            from sslengine.report.end_pages import report_sweep

            report_sweep(run_folder(runs[0].config).parent)
    return 0


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
