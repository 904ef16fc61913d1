"""Write the page of a run: is it good, how it went, what it learned, what comes next.

    sslengine report runs/birds                   write runs/birds/report.html, print its sentence
    sslengine report runs/birds --map             add a map of images; judge the run if it was not
    sslengine report runs/a runs/b runs/sweep     a table, and a page, that compares runs
    sslengine report runs/*                       what is no run is passed over; sweeps are opened
    sslengine report runs/birds --watch           again every 30 seconds, while it trains
    sslengine report runs/birds --json            print all of it as one JSON document

The page is one file that opens anywhere, without a server or a network. Of several runs the best
comes first. Two that were judged on the same images are compared image by image, so that a
difference has an interval. Scores of different metrics (accuracy, mAP), or on different images,
cannot be compared: a note says so, and `differs_in` of --json.
"""

from __future__ import annotations

import argparse
import sys
import time
import webbrowser
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from sslengine.atomic import write_whole
from sslengine.command import arguments as args
from sslengine.command.arguments import Argument
from sslengine.errors import ConfigError, SSLEngineError
from sslengine.launch.cli import INTERRUPTED
from sslengine.monitor.run_facts import REPORT, RUNNING, checkpoints_in, read_judgements
from sslengine.monitor.verdict import judge_run
from sslengine.report.comparison import compare_runs, show
from sslengine.report.gather import PAGE, write_page
from sslengine.report.page import render_comparison
from sslengine.report.summary import (
    Summary,
    differs_in,
    fingerprints,
    images_of,
    numbers,
    read,
    runs_in,
    scores_in,
)
from sslengine.screen import say
from sslengine.screen_console import LiteralConsole

SECONDS = 30.0


ARGUMENTS = (
    replace(args.RUN, flag="runs", nargs="+", help="folders of runs; the folder of a sweep"),
    Argument("--map", "compute the map of images, and what it is drawn of", bool),
    Argument("--out", "the page; else report.html in the run's folder", Path, "FILE"),
    Argument("--open", "open the page in a browser", bool),
    Argument("--watch", "write it again while the run trains", bool),
    replace(args.TRUST_CONFIG, help="with --map: allow config.yaml to run code"),
    args.JSON,
)


def main(arguments: Sequence[str]) -> int:
    given = args.make_parser(__name__).parse_args(arguments)
    folders, passed_over = runs_in(given.runs)
    if given.out is not None and given.out.suffix != ".html":
        raise ConfigError(f"--out {given.out}: expected a name that ends in .html.")
    if given.out is not None and not given.out.exists():
        args.expect_writable(given.out, "--out")
    several = len(folders) > 1
    if several and given.map:
        raise ConfigError("--map: it belongs to one run.")
    if given.json:
        args.print_document(
            _describe(folders, passed_over) if several else read(folders[0]).as_dict()
        )
        return 0
    while True:
        page = _compare(given, folders, passed_over) if several else _report(given, folders[0])
        if not given.watch or not any(_is_running(each) for each in folders):
            break
        time.sleep(SECONDS)
    if given.open:
        webbrowser.open(page.resolve().as_uri())
    return 0


def _is_running(folder: Path) -> bool:
    return read(folder).facts.status.status == RUNNING


def _report(given: argparse.Namespace, folder: Path) -> Path:
    notes: list[str] = []
    if given.map:
        if not (folder / REPORT).is_file():
            notes += _judge(folder, given.trust_config)
        from sslengine.report.make_parts import make_parts

        make_parts(folder, trust_config=given.trust_config, notes=notes)
    page = write_page(folder, given.out)
    say("\n".join([*_lines(read(folder)), *(f"  note  {each}" for each in notes)]), sys.stdout)
    say(f"page: {page}", sys.stdout)
    return page


def _judge(folder: Path, trusted: bool) -> list[str]:
    """Compute the features that a map is drawn of; return why that was not possible."""
    from sslengine.command import judge

    more = ["--trust-config"] if trusted else []
    try:
        status = judge.main([str(folder), *more, "--set", "CHECKPOINT.REPORT_AT_END=false"])
        if status == INTERRUPTED:
            raise KeyboardInterrupt
    except SSLEngineError as error:
        return [f"not judged: {' '.join(str(error).split())}"]
    return []


def _describe(folders: Sequence[Path], passed_over: Sequence[str]) -> dict[str, Any]:
    """Return what is known of several runs: side by side, and of each."""
    runs = [read(each) for each in folders]
    differs = differs_in([each for each in runs if each.scores])
    more = {"differs_in": differs, "passed_over": passed_over}
    return {**asdict(compare_runs(runs)), **more, "runs": [each.as_dict() for each in runs]}


def _compare(given: argparse.Namespace, folders: Sequence[Path], notes: Sequence[str]) -> Path:
    found = compare_runs([read(each) for each in folders])
    out = given.out or _place(given.runs, folders)
    write_whole(out, render_comparison(found).encode())
    show(LiteralConsole(width_of_file=100), found, notes)
    say(f"page: {out}", sys.stdout)
    return out


def _place(given: Sequence[Path], folders: Sequence[Path]) -> Path:
    """Return a file in the folder of a sweep; else in the current one: runs may be anywhere."""
    if len(given) == 1 and given[0] not in folders:
        return given[0] / PAGE
    return Path(PAGE)


def _lines(found: Summary) -> Iterator[str]:
    rows = list(_rows(found))
    width = max(len(name) for name, _ in rows)
    yield str(found.folder)
    for name, value in rows:
        yield f"  {name:{width}}  {value}"
    yield ""
    yield judge_run(found.facts).text


def _rows(found: Summary) -> Iterator[tuple[str, str]]:
    facts = found.facts
    if facts.config:
        of = f" of {facts.status.steps}" if facts.status.steps else ""
        yield "method", facts.method
        yield "network", facts.network
        yield "status", f"{facts.status.status}, {facts.status.step}{of} steps"
    yield from ((name, f"{value:.4g}") for name, value in found.last.items())
    if shown := ", ".join(checkpoints_in(found.folder / "checkpoints")):
        yield "checkpoints", shown
    for each in read_judgements(facts):
        scores = "  ".join(f"{name} {value:.1f}" for name, value in scores_in(each).items())
        images = images_of(each)
        yield f"judged by {each.get('metric', 'accuracy')}", f"{scores}  on {numbers(images)}"
        if shown := fingerprints(images):
            yield "fingerprint", shown
