"""Order runs by how they were judged, or measure checkpoints without labels.

    sslengine rank runs/*                              runs, by the scores of evaluation.json
    sslengine rank runs/* --by knn@20 --json
    sslengine rank runs/*/checkpoints                  checkpoints, by metrics without labels
    sslengine rank runs/mine/checkpoints --data ~/birds/val

`sslengine judge` writes evaluation.json; a run without one comes last, and what is no run is passed
over. The runs of a sweep are found in its folder. Scores of different metrics
(accuracy, mAP), or on different images, cannot be compared: a note says so, and `differs_in` of
--json. Of checkpoints a table is printed, with each metric's order. Where the images have classes
it shows how each metric agrees with nearest neighbours, and with a linear probe, over the
checkpoints: Spearman and Kendall are 1 where both have one order.
No metric is right for all methods: docs/label_free.md.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from sslengine.command import columns, documents
from sslengine.command.counts import expect_counts
from sslengine.config.options import DEVICES
from sslengine.errors import (
    ConfigError,
    MissingCheckpointError,
    UnknownNameError,
    listing,
    nearest,
    readable,
)
from sslengine.registry import import_dotted
from sslengine.report.summary import Summary, differs_in, list_incomparable, rank_of, read, runs_in
from sslengine.screen import say

ROWS, VIEWS = 25_600, 16


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sslengine rank", description=__doc__, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add = parser.add_argument
    add("runs", nargs="+", type=Path, metavar="RUN",
        help="folders of runs; or their folders `checkpoints`, or single checkpoints")  # fmt: skip
    documents.add_json(parser)
    runs = parser.add_argument_group("of runs")
    runs.add_argument("--by", metavar="SCORE", help="linear (the default), knn@20, ...")
    checkpoints = parser.add_argument_group("of checkpoints")
    add = checkpoints.add_argument
    add("--data", metavar="DATA", help="images, as for `sslengine train`; else the run's own")
    columns.add_columns(checkpoints)
    add("--rows", type=int, default=ROWS, metavar="N",
        help="use at most so many images (%(default)s)")  # fmt: skip
    add("--views", type=int, default=VIEWS, metavar="N",
        help="augmented views of an image, for LiDAR ... (%(default)s; 0: none)")  # fmt: skip
    add("--network", choices=("auto", "student", "teacher"), default="auto")
    add("--device", choices=DEVICES, default="auto")
    add("--workers", type=int, metavar="N", help="processes that load images")
    add("--plugin", action="append", default=[], metavar="MODULE",
        help="a module that registers metrics")  # fmt: skip
    add("--set", action="append", default=[], dest="values", metavar="KEY=VALUE",
        help="any key of the config")  # fmt: skip
    add("--trust-config", action="store_true", help="allow config.yaml to run code")
    return parser


def main(arguments: Sequence[str]) -> int:
    given = make_parser().parse_args(arguments)
    expect_counts(given, rows=2, views=0, workers=0)
    checkpoints = [_may_be_checkpoints(each) for each in given.runs]
    if any(checkpoints):
        if not all(checkpoints):
            raise ConfigError("expected runs, or checkpoints, and not both.")
        if given.by:
            raise ConfigError("--by orders runs; a table of checkpoints has each metric's order.")
        for each in filter(lambda path: not path.exists(), given.runs):
            raise MissingCheckpointError(f"{each}: there is no checkpoint.")
        status: int = import_dotted("sslengine.command.rank_checkpoints:rank")(given)
        return status
    by = given.by or "linear"
    folders, notes = runs_in(given.runs)
    found = ordered([read(each) for each in folders], by)
    for note in notes:
        say(note, sys.stderr)
    if given.json:
        documents.show(_rows(found, by))
    else:
        print(readable("\n".join(_lines(found, by)), but="\n"))
    return 0


def _rows(found: Sequence[Summary], by: str) -> list[dict[str, Any]]:
    different = differs_in(_judged(found, by))
    return [
        {"run": str(each.folder), by: each.scores.get(by), "metric": each.metric,
         "images": each.images, "differs_in": different}
        for each in found
    ]  # fmt: skip


def _lines(found: Sequence[Summary], by: str) -> Iterator[str]:
    judged = _judged(found, by)
    for each in judged:
        yield f"{each.scores[by]:10.1f}  {each.metric:8}  {each.folder}"
    yield from (f"not judged  {each.folder}" for each in found if by not in each.scores)
    yield from (f"  note  {each}" for each in list_incomparable(judged))


def _judged(found: Sequence[Summary], by: str) -> list[Summary]:
    return [each for each in found if by in each.scores]


def _may_be_checkpoints(path: Path) -> bool:
    return path.name == "checkpoints" or path.suffix in (".torch", ".shards")


def ordered(found: Sequence[Summary], by: str) -> list[Summary]:
    known = dict.fromkeys(name for each in found for name in each.scores)
    if known and by not in known:
        raise UnknownNameError(
            f"--by: no run has {by!r}. {nearest(by, known)} There is {listing(known)}."
        )
    # Those that were not judged come after a score that is no number.
    return sorted(
        found, key=lambda each: (by not in each.scores, -rank_of(each.scores.get(by, math.nan)))
    )
