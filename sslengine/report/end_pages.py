"""The pages of runs that have ended: of one, and of a sweep.

At the end of a training the page has pictures of what the network saw, and the check of the data;
`sslengine report RUN --map` adds the map.
"""

from __future__ import annotations

import logging
import shlex
from dataclasses import asdict
from pathlib import Path

from sslengine.atomic import write_json, write_whole
from sslengine.engines.run import Run
from sslengine.monitor.run_facts import COMPLETE, FAILED, read_facts
from sslengine.monitor.verdict import judge_run
from sslengine.report.comparison import compare_runs, show
from sslengine.report.gather import PAGE, write_page
from sslengine.report.make_parts import make_live_parts
from sslengine.report.page import render_comparison
from sslengine.report.summary import read, sweep_of
from sslengine.screen_console import LiteralConsole

log = logging.getLogger("sslengine")

SWEEP = "sweep.json"


def report_end(run: Run, trained: bool) -> None:
    """Write the page of a run that has ended, or was judged; print its sentence and its place."""
    facts = read_facts(run.run_dir)
    notes: list[str] = []
    if trained and facts.status.status == COMPLETE:
        make_live_parts(run.resolved, run.run_dir, notes)
    for note in notes:
        log.info("page: %s", note)
    page = write_page(run.run_dir)
    failed = facts.status.status == FAILED  # the error itself follows
    if trained and not failed:
        run.say(f"\n{judge_run(facts).text}\n")
    run.say(f"  page        {page}")
    if not failed:
        run.say(f"  its map     sslengine report {shlex.quote(str(run.run_dir))} --map")


def report_sweep(folder: Path) -> None:
    """Compare the runs of a sweep: print the table, write sweep.json and the page."""
    runs = sweep_of(folder)
    if len(runs) < 2:
        return
    try:
        found = compare_runs([read(each) for each in runs])
        write_json(folder / SWEEP, asdict(found))
        write_whole(folder / PAGE, render_comparison(found).encode())
    except Exception as error:  # the runs have ended: their results are there
        log.warning("%s was not written: %s", folder / PAGE, error)
        return
    console = LiteralConsole(width_of_file=100)
    console.print()
    show(console, found)
    console.print(f"page: {folder / PAGE}")
