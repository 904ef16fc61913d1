"""Runs side by side: in what they differ, how they ended, their scores; a row a run.

    sslengine compare runs/birds runs/birds-2
    sslengine compare runs/*                 what is no run is passed over; sweeps are opened
    sslengine compare runs/sweep --json

The best run comes first. Two runs that were judged on the same images are compared image by image,
so that a difference has an interval. `sslengine report A B C` makes a page of it.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, replace

from sslengine.command import documents
from sslengine.command.arguments import JSON, RUN, build_parser
from sslengine.report.comparison import compare_runs, show
from sslengine.report.summary import differs_in, read, runs_in
from sslengine.screen_console import LiteralConsole

ARGUMENTS = (replace(RUN, flag="runs", nargs="+", help="folders of runs"), JSON)


def make_parser() -> argparse.ArgumentParser:
    return build_parser("compare", __doc__, ARGUMENTS)


def main(arguments: Sequence[str]) -> int:
    given = make_parser().parse_args(arguments)
    folders, notes = runs_in(given.runs)
    runs = [read(each) for each in folders]
    found = compare_runs(runs)
    if given.json:
        differs = differs_in([each for each in runs if each.scores])
        documents.show({**asdict(found), "differs_in": differs, "passed_over": notes})
    else:
        show(LiteralConsole(width_of_file=100), found, notes)
    return 0
