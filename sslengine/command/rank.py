"""Order runs by how they were judged, the best first.

    sslengine rank runs/*
    sslengine rank runs/* --by knn@20 --json

The scores are those of evaluation.json, which `sslengine judge` writes; a run without one comes
last.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from sslengine.command.summary import Summary, read
from sslengine.errors import UnknownNameError, listing, nearest


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sslengine rank", description=__doc__, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folders of runs")
    parser.add_argument("--by", default="linear", metavar="SCORE", help="linear, knn@20, ...")
    parser.add_argument("--json", action="store_true")
    return parser


def main(arguments: Sequence[str]) -> int:
    given = make_parser().parse_args(arguments)
    found = ordered([read(each) for each in given.runs], given.by)
    rows = [{"run": str(each.folder), given.by: each.scores.get(given.by)} for each in found]
    if given.json:
        print(json.dumps(rows, indent=1))
        return 0
    for row in rows:
        score = row[given.by]
        print(f"{'not judged' if score is None else f'{score:10.1f}'}  {row['run']}")
    return 0


def ordered(found: Sequence[Summary], by: str) -> list[Summary]:
    known = dict.fromkeys(name for each in found for name in each.scores)
    if known and by not in known:
        raise UnknownNameError(
            f"--by: no run has {by!r}. {nearest(by, known)} There is {listing(known)}."
        )
    return sorted(found, key=lambda each: -each.scores.get(by, float("-inf")))
