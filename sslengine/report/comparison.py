"""Several runs side by side: in which keys they differ, how they end, which is best, and whether
the difference is larger than the choice of test images explains."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sslengine.dotted import leaves
from sslengine.evaluation.pairs import compare_pairs
from sslengine.monitor.run_facts import PIXELS, TRAINED, UNTRAINED, Facts, Score, scores_of
from sslengine.report.content import Comparison, Fact, Row
from sslengine.report.read_curves import read_curves
from sslengine.report.summary import Summary, list_incomparable, rank_of

# Keys that say where a run is, what it prints, or how fast it reads.
_NO_MATTER = re.compile(
    r"CHECKPOINT\..*|LOG_FREQUENCY|VERBOSE|HOOKS\.(WRITERS|ONLINE_EVAL|TENSORBOARD).*"
    r"|DATA\.(NUM_DATALOADER_WORKERS|PIN_MEMORY).*"
)
TYPED = "command line"
# Curves that are laid over each other.
CURVES = 4
Right = NDArray[np.float64]
Difference = tuple[float, float, float]


def compare_runs(found: Sequence[Summary]) -> Comparison:
    """Put runs side by side, the best first."""
    runs = [each.facts for each in found]
    names = _short_names([each.folder for each in runs])
    differs = keys_that_differ(runs)
    by = _metric_of_all(runs)
    order = sorted(range(len(runs)), key=lambda each: (_rank(runs[each], by), each))
    rows = [_row(runs[each], names[each], differs) for each in order]
    runs, names = [runs[each] for each in order], [names[each] for each in order]
    answers = [_read_answers(each) for each in runs]
    metrics = list(dict.fromkeys(metric for each in runs for metric in each.metrics))
    together = {metric: _differences(answers, metric) for metric in metrics}
    swept = _swept(rows, differs)
    sentence, detail = _sentence(rows, by, together.get(by, []), swept)
    place = shlex.quote(str(runs[0].folder))
    use = f"sslengine embed {place} IMAGES --out features.parquet"
    return Comparison(
        title=f"{len(rows)} runs", sentence=sentence, detail=detail,
        command=use if rows[0].scores else f"sslengine judge {place}",
        rows=rows, baselines=next(filter(None, map(_baselines, runs)), []), names=names,
        differences=together, swept=swept,
        best=[_best(rows, metric, together[metric]) for metric in metrics],
        same=[*_same(runs)], notes=[*_notes(found)],
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
    sections = {name.rpartition(".")[0] for name in typed}
    follow = {name for name in found for each in origins if each.get(name, "")[:7] == "derived"}
    follow |= {name for name in found for each in sections if name.startswith(f"{each}.")}
    return [*typed, *(name for name in found if name not in typed and name not in follow)]


def origins_in(file: Path) -> dict[str, str]:
    """Return the origin of each value of a stored config that is no default."""
    found: dict[str, str] = {}
    above: list[tuple[int, str]] = []
    lines = file.read_text("utf-8", errors="replace").splitlines() if file.is_file() else []
    for line in lines:
        key = re.match(r"^( *)([\w.-]+):(?: (.*))?$", line)
        if key is None:
            continue
        above = [*(each for each in above if each[0] < len(key[1])), (len(key[1]), key[2])]
        _, comment, origin = (key[3] or "").rpartition("  # ")
        if comment:
            found[".".join(name for _, name in above[1:])] = origin.strip()
    return found


def _row(run: Facts, name: str, differs: Sequence[str]) -> Row:
    values = dict(leaves(run.config))
    last = run.ends[-1] if run.ends else {}
    metrics = {"loss": run.losses[-1]} if run.losses else {}
    metrics |= {"RankMe": last["trunk_rank"]} if "trunk_rank" in last else {}
    status = run.status
    return Row(
        name, status.status, {key: _told(values.get(key, "")) for key in differs},
        scores_of(run.evaluation, TRAINED), metrics,
        f"{status.step} of {status.steps} steps" if status.steps else f"{status.step} steps",
        run.seconds, [each.what for each in run.found], read_curves(run)[:CURVES],
    )  # fmt: skip


def _told(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_told, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _short_names(folders: Sequence[Path]) -> list[str]:
    """Return the last part of each folder, or as many as tell them apart."""
    for count in range(1, 5):
        names = ["/".join(each.parts[-count:]) for each in folders]
        if len({*names}) == len(names):
            return names
    return [str(each) for each in folders]


def _swept(rows: Sequence[Row], differs: Sequence[str]) -> str:
    """Return the first key that differs, if its values are numbers; empty: none."""
    with suppress(ValueError):
        if differs and len({float(row.differs[differs[0]]) for row in rows}) > 1:
            return differs[0]
    return ""


# ---- scores


def _metric_of_all(runs: Sequence[Facts]) -> str:
    """Return the metric to order by: the linear probe where all judged runs have it."""
    judged = [each.metrics for each in runs if each.metrics]
    known = ["linear", *judged[0]] if judged else []
    return next((metric for metric in known if all(metric in each for each in judged)), "")


def _rank(run: Facts, metric: str) -> tuple[bool, float]:
    """Order judged runs first, the best score first."""
    found = run.scores(metric).get(TRAINED)
    return found is None, -rank_of(found.value) if found else 0.0


def _read_answers(run: Facts) -> dict[tuple[str, str], Right]:
    """Return which test images its features answer rightly, by set of images and metric."""
    if not run.answers.is_file():
        return {}
    with np.load(run.answers, allow_pickle=False) as held:
        return {(run.answers.stem, name.rpartition("/")[2]): (held[name] == held["wanted"]) * 1.0
                for name in held.files if name.startswith(f"{TRAINED}/")}  # fmt: skip


def _differences(
    answers: Sequence[Mapping[tuple[str, str], Right]], metric: str
) -> list[list[Difference | None]]:
    """Return row minus column, with its interval, where both answered the same images."""

    def compare(one: Mapping[Any, Right], other: Mapping[Any, Right]) -> Difference | None:
        shared = [key for key in one if key in other and key[1] == metric and one is not other]
        return compare_pairs(one[shared[0]], other[shared[0]]) if shared else None

    return [[compare(one, other) for other in answers] for one in answers]


def _baselines(run: Facts) -> list[Score]:
    """Return the scores of what needs no training."""
    return [each for each in scores_of(run.evaluation) if each.features in (UNTRAINED, PIXELS)]


def _best(
    rows: Sequence[Row], metric: str, differences: Sequence[Sequence[Difference | None]]
) -> tuple[str, str, str]:
    """Return a metric, the run that is best by it, and whether the difference is a real one."""
    values = [_value(row, metric) for row in rows]
    best = max(range(len(rows)), key=lambda each: (values[each] is not None, values[each] or 0.0))
    others = [found for found in differences[best] if found is not None]
    if not others:
        return metric, rows[best].name, "not judged on the same images"
    clear = sum(found[1] > 0 for found in others)
    told = f"than {clear} of {len(others)} others"
    return metric, rows[best].name, "yes, than all others" if clear == len(others) else told


def _value(row: Row, metric: str) -> float | None:
    return next((each.value for each in row.scores if each.metric == metric), None)


def _sentence(
    rows: Sequence[Row], by: str, differences: Sequence[Sequence[Difference | None]], swept: str
) -> tuple[str, str]:
    """Say which run is best, and whether the next ones are clearly worse."""
    judged = [row for row in rows if by and _value(row, by) is not None]
    if not judged:
        return f"{len(rows)} runs, none of them judged.", "Scores say which of them learned more."
    name, kind = judged[0].name, "linear probe" if by == "linear" else "kNN"
    if swept:
        name = f"{swept.rpartition('.')[2]} {judged[0].differs[swept]}"
    values = ", ".join(f"{_value(row, by):.1f}" for row in judged[1:4])
    if len(judged) == 1:
        return f"{name} alone was judged: {kind} {_value(judged[0], by):.1f} %.", ""
    own, rest = f"{_value(judged[0], by):.1f}", len(judged) - 4
    against = f"{values}{f' and {rest} lower' if rest > 0 else ''} %"
    found = list(differences[0][1 : len(judged)]) if differences else []
    alike = [row for row, each in zip(judged[1:], found) if each is None or each[1] <= 0]
    detail = ""
    if found and found[0] is not None:
        by_points, low, high = found[0]
        detail = (
            f"To the next it is {by_points:.1f} points ({low:.1f} to {high:.1f}) on the same "
            f"images. The interval covers the choice of test images, not another seed."
        )
    if not alike:
        return f"{name} is best: {kind} {own} against {against}.", detail
    return (f"{name} is first by {kind}, {own} against {against}, but {len(alike)} of "
            f"{len(judged) - 1} others may be as good."), detail  # fmt: skip


def _same(runs: Sequence[Facts]) -> Iterator[Fact]:
    """Yield what all runs have in common."""
    kinds = {
        "method": [each.method for each in runs],
        "network": [each.network for each in runs],
        "judged on": [f"{each.tested} images" for each in runs if each.metrics],
        "sslengine": [str(start.get("sslengine")) for each in runs for start in each.starts[-1:]],
    }
    for name, values in kinds.items():
        if len({*values}) == 1 and values[0]:
            yield Fact(name, values[0])


def _notes(found: Sequence[Summary]) -> Iterator[str]:
    judged = [each for each in found if each.scores]
    yield from list_incomparable(judged)
    unjudged = [str(each.folder) for each in found if not each.scores]
    if judged and unjudged:
        yield f"not judged: {', '.join(unjudged)}"
