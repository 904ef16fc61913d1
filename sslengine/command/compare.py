"""Runs side by side: method, network, last metrics, scores.

    sslengine compare runs/birds runs/birds-2
    sslengine compare runs/* --json

What is compared is read from the files of the runs. Scores of different metrics (accuracy, mAP),
or on different images, cannot be compared: a note says so, and `differs_in` of --json.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.table import Table

from sslengine.command import documents, judged_on
from sslengine.command.summary import Summary, read
from sslengine.errors import readable
from sslengine.screen_console import LiteralConsole


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sslengine compare", description=__doc__, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folders of runs")
    documents.add_json(parser)
    return parser


def main(arguments: Sequence[str]) -> int:
    given = make_parser().parse_args(arguments)
    found = [read(each) for each in given.runs]
    judged = [each for each in found if each.scores]
    if given.json:
        different = judged_on.differs_in(judged)
        documents.show([{**each.as_dict(), "differs_in": different} for each in found])
        return 0
    LiteralConsole(width_of_file=160).print(table(found))
    for line in judged_on.notes(judged):
        print(readable(line))
    return 0


def table(found: Sequence[Summary]) -> Table:
    """A row for each property that a run has: runs are columns."""
    made = Table("", *(str(each.folder) for each in found))
    made.add_row("method", *(each.method for each in found))
    made.add_row("network", *(each.network for each in found))
    if any(each.epochs for each in found):
        made.add_row("epochs", *(str(each.epochs or "") for each in found))
    made.add_row("iterations", *(str(each.iterations) for each in found))
    _add_numbers(made, [each.metrics for each in found])
    _add_judged(made, found)
    _add_numbers(made, [each.scores for each in found])
    return made


def _add_numbers(made: Table, values: Sequence[Mapping[str, float]]) -> None:
    for name in dict.fromkeys(name for each in values for name in each):
        made.add_row(name, *(f"{each[name]:.4g}" if name in each else "" for each in values))


def _add_judged(made: Table, found: Sequence[Summary]) -> None:
    """By which metric; and on which images, where these are not the same."""
    sets = judged_on.image_sets([each for each in found if each.scores])
    if sets:
        made.add_row("metric", *(each.metric or "" for each in found))
    if len(sets) > 1:
        made.add_row(
            "images",
            *(str(judged_on.number_in(sets, each.images)) if each.scores else "" for each in found),
        )
