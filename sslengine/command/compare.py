"""Runs side by side: method, network, last metrics, scores.

    sslengine compare runs/birds runs/birds-2
    sslengine compare runs/* --json

What is compared is read from the files of the runs.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from sslengine.command import documents
from sslengine.command.summary import Summary, read


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
    if given.json:
        documents.show([each.as_dict() for each in found])
        return 0
    console = Console()
    (console if console.is_terminal else Console(width=160)).print(table(found))
    return 0


def table(found: Sequence[Summary]) -> Table:
    """A row for each property that a run has: runs are columns."""
    made = Table("", *(str(each.folder) for each in found))
    made.add_row("method", *(each.method for each in found))
    made.add_row("network", *(each.network for each in found))
    made.add_row("epochs", *(str(each.epochs or "") for each in found))
    made.add_row("iterations", *(str(each.iterations) for each in found))
    for values in ([each.metrics for each in found], [each.scores for each in found]):
        for name in dict.fromkeys(name for each in values for name in each):
            made.add_row(name, *(f"{each[name]:.4g}" if name in each else "" for each in values))
    return made
