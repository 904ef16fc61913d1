"""Show a run: what was trained, its last metrics, how it was judged.

    sslengine report runs/birds
    sslengine report runs/birds --json

Nothing is computed: it is read from the files of the run.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from sslengine.command import documents
from sslengine.command.judged_on import fingerprints, numbers
from sslengine.command.summary import Summary, read
from sslengine.screen import say


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sslengine report", description=__doc__, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("run", type=Path, metavar="RUN", help="the folder of a run")
    documents.add_json(parser)
    return parser


def main(arguments: Sequence[str]) -> int:
    given = make_parser().parse_args(arguments)
    found = read(given.run)
    if given.json:
        documents.show(found.as_dict())
    else:
        say("\n".join(_lines(found)), sys.stdout)
    return 0


def _lines(found: Summary) -> Iterator[str]:
    rows = list(_rows(found))
    width = max(len(name) for name, _ in rows)
    yield str(found.folder)
    for name, value in rows:
        yield f"  {name:{width}}  {value}"
    for each in found.evaluation.get("scores", []):
        knn = "  ".join(f"knn@{k} {value:.1f}" for k, value in each["knn"].items())
        linear = "" if each.get("linear") is None else f"  linear {each['linear']:.1f}"
        yield f"  {each['features']}, {each['layer']}:  {knn}{linear}"
    if not found.evaluation:
        named = shlex.quote(str(found.folder))
        yield f"  not judged yet: sslengine judge {named} --train DIR --val DIR"


def _rows(found: Summary) -> Iterator[tuple[str, str]]:
    yield "method", str(found.method)
    yield "network", str(found.network)
    yield "iterations", _length(found)
    yield from ((name, f"{value:.4g}") for name, value in found.metrics.items())
    yield "checkpoints", ", ".join(found.checkpoints) or "none"
    if found.metric:
        yield "judged by", f"{found.metric}, on {numbers(found.images)}"
    if shown := fingerprints(found.images):
        yield "fingerprint", shown


def _length(found: Summary) -> str:
    if found.epochs:
        return f"{found.iterations}, of {found.epochs} epochs"
    return f"{found.iterations} of {found.num_iterations or '?'}"
