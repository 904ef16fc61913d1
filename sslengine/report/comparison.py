"""Several runs side by side: in which keys they differ, how they end, which is best, and whether
the difference is larger than the choice of test images explains."""

from __future__ import annotations

import math
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from sslengine.dotted import leaves
from sslengine.evaluate.pairs import compare_pairs
from sslengine.monitor.run_facts import PIXELS, TRAINED, UNTRAINED, Facts, FeatureScore, scores_of
from sslengine.report.content import Comparison, Row
from sslengine.report.read_curves import read_curves
from sslengine.report.scale import name_metric
from sslengine.report.summary import Summary, list_incomparable, rank_of

# Keys that say where a run is, what it prints, or how fast it reads.
_NO_MATTER = re.compile(
    r"CHECKPOINT\..*|LOG_FREQUENCY|VERBOSE|HOOKS\.(WRITERS|ONLINE_EVAL|TENSORBOARD).*"
    r"|DATA\.(NUM_DATALOADER_WORKERS|PIN_MEMORY).*"
)
TYPED = "command line"
# Curves that are laid over each other.
CURVES = 4
KEYS, WIDTH = 3, 12  # keys that differ, of which a table has a column; characters of a value
Right = NDArray[np.float64]
Difference = tuple[float, float, float]
Values = Sequence[Mapping[str, float]]  # of each run, by metric
Matrix = Sequence[Sequence[Difference | None]]  # row minus column


def compare_runs(found: Sequence[Summary]) -> Comparison:
    """Put runs side by side, the best first."""
    runs = [each.facts for each in found]
    metrics = list(dict.fromkeys(metric for each in runs for metric in each.metrics))
    by = _metric_of_all([each.metrics for each in runs if each.metrics])
    runs.sort(key=lambda run: -rank_of(_values(run).get(by, math.nan)))
    rows, values = _rows(runs), [_values(run) for run in runs]
    answers = [_read_answers(run) for run in runs]
    differences = {
        metric: [[_compare(one, other, metric) for other in answers] for one in answers]
        for metric in metrics
    }
    swept = _swept(rows)
    sentence, detail = _sentence(rows, swept, by, values, differences)
    place, methods = shlex.quote(str(runs[0].folder)), dict.fromkeys(each.method for each in runs)
    use = f"sslengine embed {place} IMAGES --out features.parquet"
    return Comparison(
        title=f"{len(rows)} runs of {', '.join(methods)}", sentence=sentence, detail=detail,
        command=use if rows[0].scores else f"sslengine judge {place}",
        rows=rows, baselines=next(filter(None, map(_baselines, runs)), []),
        names=[row.name for row in rows], differences=differences, swept=swept,
        best=[_best(rows, values, metric, differences[metric]) for metric in metrics],
        notes=[*_notes(found)],
    )  # fmt: skip


# ---- what differs


def keys_that_differ(runs: Sequence[Facts]) -> list[str]:
    """Return the keys in which configs differ; those that were typed first.

    Left out is what follows from other keys: `derived`, and the rest of a section with a typed key.
    """
    flat = [dict(leaves(each.config)) for each in runs]
    names = dict.fromkeys(name for each in flat for name in each)
    found = [name for name in names if not _NO_MATTER.fullmatch(name)
             and len({str(each.get(name, "")) for each in flat}) > 1]  # fmt: skip
    origins = [origins_in(each.folder / "config.yaml") for each in runs]
    typed = [name for name in found if any(each.get(name) == TYPED for each in origins)]
    sections = tuple(f"{name.rpartition('.')[0]}." for name in typed)
    others = [name for name in found if name not in typed and not name.startswith(sections)]
    derived = {name for each in origins for name in each if each[name].startswith("derived")}
    return [*typed, *(name for name in others if name not in derived)]


def origins_in(file: Path) -> dict[str, str]:
    """Return the origin of each value of a stored config that is no default."""
    found: dict[str, str] = {}
    above: list[tuple[int, str]] = []
    lines = file.read_text("utf-8", errors="replace").splitlines() if file.is_file() else []
    for key in filter(None, (re.match(r"( *)([\w.-]+):(?: (.*))?$", line) for line in lines)):
        above = [*(each for each in above if each[0] < len(key[1])), (len(key[1]), key[2])]
        _, comment, origin = (key[3] or "").rpartition("  # ")
        if comment:
            found[".".join(name for _, name in above[1:])] = origin.strip()
    return found


def _rows(runs: Sequence[Facts]) -> list[Row]:
    """Give a row a run; its name is its folder below the one that all have above them."""
    differs, found = keys_that_differ(runs), []
    top = os.path.commonpath([each.folder.absolute().parent for each in runs])
    for run in runs:
        config, status = dict(leaves(run.config)), run.status
        metrics = {"loss": run.losses[-1]} if run.losses else {}
        if run.ends and "trunk_rank" in run.ends[-1]:
            metrics["RankMe"] = run.ends[-1]["trunk_rank"]
        found.append(Row(
            os.path.relpath(run.folder, top), status.status,
            {key: _told(config.get(key, "")) for key in differs},
            scores_of(run.evaluation, TRAINED), metrics,
            f"{status.step} of {status.steps} steps" if status.steps else f"{status.step} steps",
            run.seconds, [each.what for each in run.found], read_curves(run)[:CURVES],
        ))  # fmt: skip
    return found


def _told(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_told, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _swept(rows: Sequence[Row]) -> str:
    """Return the first key that differs, if its values are numbers and several were judged."""
    key = next(iter(rows[0].differs), "")
    with suppress(ValueError):
        numbers = [float(row.differs[key]) for row in rows if key]
        if len({number for number, row in zip(numbers, rows) if row.scores}) > 1:
            return key
    return ""


# ---- scores


def _values(run: Facts) -> dict[str, float]:
    """Return the scores of its features by metric, of the last layer."""
    return {each.metric: each.value for each in scores_of(run.evaluation, TRAINED)}


def _metric_of_all(judged: Sequence[Sequence[str]]) -> str:
    """Return the metric to order by: the linear probe where all judged runs have it."""
    known = ["linear", *(metric for each in judged[:1] for metric in each)]
    return next((metric for metric in known if all(metric in each for each in judged)), "")


def _read_answers(run: Facts) -> dict[tuple[str, str], Right]:
    """Return which test images its features answer rightly, by set of images and metric."""
    if not run.answers.is_file():
        return {}
    with np.load(run.answers, allow_pickle=False) as held:
        return {(run.answers.stem, name.rpartition("/")[2]): (held[name] == held["wanted"]) * 1.0
                for name in held.files if name.startswith(f"{TRAINED}/")}  # fmt: skip


def _compare(
    one: Mapping[tuple[str, str], Right], other: Mapping[tuple[str, str], Right], metric: str
) -> Difference | None:
    """Return one minus other, with its interval, where both answered the same images."""
    shared = [key for key in one if key in other and key[1] == metric and one is not other]
    return compare_pairs(one[shared[0]], other[shared[0]]) if shared else None


def _baselines(run: Facts) -> list[FeatureScore]:
    """Return the scores of what needs no training."""
    return [each for each in scores_of(run.evaluation) if each.features in (UNTRAINED, PIXELS)]


def _best(
    rows: Sequence[Row], values: Values, metric: str, differences: Matrix
) -> tuple[str, str, str]:
    """Return a metric, the run that is best by it, and whether the difference is a real one."""
    best = max(range(len(rows)), key=lambda run: rank_of(values[run].get(metric, math.nan)))
    others = [found for found in differences[best] if found is not None]
    clear = sum(found[1] > 0 for found in others)
    told = f"than {clear} of {len(others)} others"
    if clear == len(others):
        told = "yes, than all others" if others else "not judged on the same images"
    return metric, rows[best].name, told


def _sentence(
    rows: Sequence[Row], swept: str, by: str, values: Values, differences: Mapping[str, Matrix]
) -> tuple[str, str]:
    """Say which run is best, and whether the next ones are clearly worse."""
    scores = [f"{each[by]:.1f}" for each in values if by in each]
    if not scores:
        return f"{len(rows)} runs, none of them judged.", "Scores say which of them learned more."
    name = f"{swept.rpartition('.')[2]} {rows[0].differs[swept]}" if swept else rows[0].name
    kind = "linear probe" if by == "linear" else "kNN"
    if len(scores) == 1:
        return f"{name} alone was judged: {kind} {scores[0]} %.", ""
    rest = f" and {len(scores) - 4} lower" if len(scores) > 4 else ""
    against = f"{', '.join(scores[1:4])}{rest} %"
    gaps = differences[by][0][1 : len(scores)]
    alike, detail = sum(gap is None or gap[1] <= 0 for gap in gaps), ""
    if gaps[0] is not None:
        points, low, high = gaps[0]
        detail = (
            f"To the next it is {points:.1f} points ({low:.1f} to {high:.1f}) on the same "
            f"images. The interval covers the choice of test images, not another seed."
        )
    if not alike:
        return f"{name} is best: {kind} {scores[0]} against {against}.", detail
    return (f"{name} is first by {kind}, {scores[0]} against {against}, but {alike} of "
            f"{len(gaps)} others may be as good."), detail  # fmt: skip


def _notes(found: Sequence[Summary]) -> Iterator[str]:
    judged = [each for each in found if each.scores]
    yield from list_incomparable(judged)
    unjudged = [str(each.folder) for each in found if not each.scores]
    if judged and unjudged:
        yield f"not judged: {', '.join(unjudged)}"


# ---- on the screen


def show(console: Console, found: Comparison, notes: Sequence[str] = ()) -> None:
    """Print the sentence, the table and what cannot be compared."""
    keys = list(found.rows[0].differs)[:KEYS]
    metrics = list(dict.fromkeys(each.metric for row in found.rows for each in row.scores))
    table = Table(box=None, pad_edge=False)
    table.add_column("run", overflow="fold")
    for key in keys:
        table.add_column(".".join(key.split(".")[-2:]), justify="right", overflow="fold")
    for title in (*map(name_metric, metrics), "loss", "steps"):
        table.add_column(title, justify="right")
    table.add_column("status")
    for row in found.rows:
        table.add_row(*_cells(row, keys, metrics))
    console.print(found.sentence)
    console.print(*filter(None, [found.detail]), "", sep="\n")
    console.print(table)
    more = len(found.rows[0].differs) - len(keys)
    told = [f"{more} more keys differ: --json has them, the page too"] * (more > 0)
    for note in (*told, *found.notes, *notes):
        console.print(f"  note  {note}", soft_wrap=True)


def _cells(row: Row, keys: Sequence[str], metrics: Sequence[str]) -> list[str]:
    scores = {each.metric: each for each in row.scores}
    cells = [f"{scores[each].value:.1f}" if each in scores else "-" for each in metrics]
    loss = row.metrics.get("loss")
    state = f"{row.status}: {', '.join(row.findings)}" if row.findings else row.status
    return [
        row.name, *(_end_of(row.differs[key]) for key in keys), *cells,
        "-" if loss is None else f"{loss:.4g}", row.length.partition(" ")[0], state,
    ]  # fmt: skip


def _end_of(text: str) -> str:
    """Return a value, or its end, where paths differ."""
    return text if len(text) <= WIDTH else f"...{text[3 - WIDTH :]}"
