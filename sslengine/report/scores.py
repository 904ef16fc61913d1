"""Draw scores with their intervals: bars, classes, runs in a table and against a swept value."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from markupsafe import Markup

from sslengine.monitor.run_facts import Score
from sslengine.report.content import ClassRow
from sslengine.report.scale import Axis, fit_axis, format_points
from sslengine.report.svg import Drawing, Point, name_kind

_SHARES = Axis(0.0, 100.0, 104.0, 352.0)


def _start_rows(count: int) -> Drawing:
    """Draw the axis from 0 to 100 for so many rows."""
    bottom = 26 * count + 6
    drawing = Drawing(400, bottom + 20)
    for value, text in _SHARES.ticks(5):
        drawing.line(_SHARES.at(value), 2, _SHARES.at(value), bottom, "gr")
        drawing.text(_SHARES.at(value), bottom + 15, text + (" %" if value == 100 else ""), "m")
    return drawing


def draw_bars(scores: Sequence[Score], chance: float | None) -> Markup:
    """Draw scores between 0 and 100 with their intervals, one line each."""
    rows = [(each.features, each.value, each.interval) for each in scores]
    rows += [("chance", chance, None)] if chance is not None else []
    drawing, words = _start_rows(len(rows)), []
    for number, (name, value, interval) in enumerate(rows):
        y, kind = 26 * number + 16, name_kind(name)
        weight = "b t1" if kind == "trained" else "t2"
        drawing.text(0, y + 4, name, weight)
        drawing.text(400, y + 4, format_points(value), f"e {weight}")
        said = f"{name} {format_points(value)} %"
        if interval:
            low, high = interval
            drawing.line(_SHARES.at(low), y, _SHARES.at(high), y, f"bar k-{kind}")
            said += f" ({format_points(low)} to {format_points(high)})"
        drawing.mark(kind, _SHARES.at(value), y)
        words.append(said)
    return drawing.svg("; ".join(words))


def draw_classes(rows: Sequence[ClassRow]) -> Markup:
    """Draw the scores of each class by kind of features on one line, ends joined."""
    drawing, words = _start_rows(len(rows)), []
    for number, row in enumerate(rows):
        y, shares = 26 * number + 16, {k: v for k, v in row.shares.items() if math.isfinite(v)}
        places = [_SHARES.at(value) for value in shares.values()] or [_SHARES.start]
        drawing.text(0, y + 4, row.name if len(row.name) <= 16 else row.name[:15] + "…", "t2")
        drawing.line(min(places), y, max(places), y, "join")
        # The trained one last: it lies above the others.
        for features, value in sorted(shares.items(), key=lambda each: each[0] == "trained"):
            drawing.mark(name_kind(features), _SHARES.at(value), y)
        if "trained" in shares:
            drawing.text(400, y + 4, format_points(shares["trained"]), "e t1")
        said = ", ".join(f"{name} {format_points(value)}" for name, value in shares.items())
        words.append(f"{row.name}: {said}")
    return drawing.svg("; ".join(words))


def draw_places(places: Sequence[Point], groups: Sequence[int], title: str) -> Markup:
    """Draw the map small, for the margin and for paper; a group's colour is that of its number."""
    x, y, drawing = Axis(0, 1, 6, 312), Axis(0, 1, 6, 242), Drawing(318, 248)
    by_group: dict[int, list[Point]] = {}
    for (across, down), group in zip(places, groups):
        by_group.setdefault(group, []).append((x.at(across), y.at(down)))
    for group, points in sorted(by_group.items()):
        drawing.points(points, f"c{group % 10}" if group >= 0 else "k-other")
    return drawing.svg(f"Map of the images, {title}")


def draw_interval(score: Score, x: Axis, run: int, baselines: Sequence[Score]) -> Markup:
    """Draw a run's score in a cell of a table, with the scores of the baselines as thin lines."""
    drawing = Drawing(150, 26)
    for value, _ in x.ticks(4):
        drawing.line(x.at(value), 0, x.at(value), 26, "gr")
    for each in baselines:
        drawing.line(x.at(each.value), 6, x.at(each.value), 20, f"l k-{name_kind(each.features)}")
    if score.interval:
        low, high = score.interval
        drawing.line(x.at(low), 13, x.at(high), 13, f"bar r{run % 8}")
    drawing.dot(x.at(score.value), 13, f"full r{run % 8}")
    return drawing.svg("")


def draw_sweep(
    points: Sequence[tuple[float, int, Sequence[Score]]], baselines: Sequence[Score], name: str
) -> Markup:
    """Draw scores against the value of a key; runs of one value stand side by side."""
    scores = [score for _, _, each in points for score in each]
    values = [v for score in [*scores, *baselines] for v in (*(score.interval or ()), score.value)]
    keys = sorted({value for value, _, _ in points})
    low, high = keys[0], keys[-1]
    if low > 0 and high >= 8 * low:
        x = Axis(low / (high / low) ** 0.1, high * (high / low) ** 0.1, 46, 456, log=True)
    else:
        x = fit_axis(low, high, 46, 456)
    y, drawing = fit_axis(min(values), max(values), 190, 8), Drawing(470, 214)
    for value, text in y.ticks(5):
        drawing.line(46, y.at(value), 456, y.at(value), "gr")
        drawing.text(40, y.at(value) + 4, text, "e")
    for value, text in x.ticks(6):
        drawing.text(x.at(value), 208, text, "m")
    seen: dict[float, int] = {}
    for value, run, each_scores in points:
        for number, score in enumerate(each_scores):
            count = seen[value] = seen.get(value, -1) + 1
            across = x.at(value) + (count + 1) // 2 * 11 * (1 if count % 2 else -1)
            kind = f"run r{run % 8} n{run}"
            if score.interval:
                low, high = score.interval
                drawing.line(across, y.at(low), across, y.at(high), f"bar {kind}")
            drawing.dot(across, y.at(score.value), f"{'open' if number else 'full'} {kind}")
    # The names of the baselines stand where no run does.
    gaps = [(x.at(after) - x.at(before), x.at(before)) for before, after in pairwise(keys)]
    free = max(gaps)[1] + max(gaps)[0] / 2
    for each in baselines:
        kind, height = name_kind(each.features), y.at(each.value)
        drawing.line(46, height, 456, height, f"ref k-{kind}")
        label = f"{each.features} {format_points(each.value)}"
        drawing.text(free, height - 4, label, f"m halo f-{kind}")
    return drawing.svg(f"Scores against {name}")
