"""Show a run: what was trained, its last metrics, how it was judged.

    sslengine report runs/birds
    sslengine report runs/birds --json

Nothing is computed: it is read from the files of the run.
"""

from __future__ import annotations

import argparse
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
    yield str(found.folder)
    yield f"  method       {found.method}"
    yield f"  network      {found.network}"
    yield f"  iterations   {_length(found)}"
    for name, value in found.metrics.items():
        yield f"  {name}  {value:.4g}"
    if found.metric:
        yield f"  judged by    {found.metric}, on {numbers(found.images)}"
    if shown := fingerprints(found.images):
        yield f"  fingerprint  {shown}"
    for each in found.evaluation.get("scores", []):
        knn = "  ".join(f"knn@{k} {value:.1f}" for k, value in each["knn"].items())
        linear = "" if each.get("linear") is None else f"  linear {each['linear']:.1f}"
        yield f"  {each['features']}, {each['layer']}:  {knn}{linear}"
    if not found.evaluation:
        yield f"  not judged yet: sslengine judge {found.folder} --train DIR --val DIR"
    yield f"  checkpoints  {', '.join(found.checkpoints) or 'none'}"


def _length(found: Summary) -> str:
    if found.epochs:
        return f"{found.iterations}, of {found.epochs} epochs"
    return f"{found.iterations} of {found.num_iterations or '?'}"
