"""Draw scores with their intervals: bars, classes, runs in a table and against a swept value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from markupsafe import Markup

from sslengine.report.content import ClassRow, Score
from sslengine.report.scale import Axis, fit_axis, format_number, format_points
from sslengine.report.svg import (
    Point,
    draw_box,
    draw_dot,
    draw_dots,
    draw_frame,
    draw_line,
    draw_mark,
    draw_text,
    name_kind,
)

SHARES = Axis(0.0, 100.0, 104.0, 352.0)


def _draw_shares(bottom: float, most: int = 5) -> list[str]:
    parts = []
    for value, text in SHARES.ticks(most):
        x = SHARES.at(value)
        parts += [
            draw_line((x, 2), (x, bottom), "gr"),
            draw_text(x, bottom + 15, text + (" %" if value == 100 else ""), "m"),
        ]
    return parts


def draw_bars(scores: Sequence[Score], chance: float | None) -> Markup:
    """Draw scores between 0 and 100 with their intervals, one line each."""
    rows = [(each.features, each.value, each.interval) for each in scores]
    rows += [("chance", chance, None)] if chance is not None else []
    bottom = 26 * len(rows) + 6
    parts, words = _draw_shares(bottom), []
    for number, (name, value, interval) in enumerate(rows):
        y, kind = 26 * number + 16, name_kind(name)
        first = "b t1" if kind == "trained" else "t2"
        parts += [
            draw_text(0, y + 4, name, first),
            draw_text(400, y + 4, format_points(value), f"e {first}"),
        ]
        said = f"{name} {format_points(value)} %"
        if interval:
            parts.append(
                draw_line((SHARES.at(interval[0]), y), (SHARES.at(interval[1]), y), f"bar k-{kind}")
            )
            said += f" ({format_points(interval[0])} to {format_points(interval[1])})"
        parts.append(draw_mark(kind, SHARES.at(value), y))
        words.append(said)
    return draw_frame(400, bottom + 20, "; ".join(words), parts)


def draw_classes(rows: Sequence[ClassRow]) -> Markup:
    """Draw the scores of each class by kind of features on one line, ends joined."""
    bottom = 26 * len(rows) + 6
    parts, words = _draw_shares(bottom), []
    for number, row in enumerate(rows):
        y = 26 * number + 16
        name = row.name if len(row.name) <= 16 else row.name[:15] + "…"
        places = [SHARES.at(value) for value in row.shares.values()]
        parts += [
            draw_text(0, y + 4, name, "t2"),
            draw_line((min(places), y), (max(places), y), "join"),
        ]
        # The trained one last: it lies above the others.
        for features, value in sorted(row.shares.items(), key=lambda each: each[0] == "trained"):
            parts.append(draw_mark(name_kind(features), SHARES.at(value), y))
        if "trained" in row.shares:
            parts.append(draw_text(400, y + 4, format_points(row.shares["trained"]), "e t1"))
        words.append(
            row.name + " " + ", ".join(f"{k} {format_points(v)}" for k, v in row.shares.items())
        )
    return draw_frame(400, bottom + 20, "; ".join(words), parts)


def draw_pair(before: float | None, after: float, colour: int) -> Markup:
    """Draw a class's share before and after training in the legend of the map."""
    x = Axis(0, 100, 5, 115)
    parts = [draw_line((5, 7), (115, 7), "gr")]
    if before is not None:
        parts.append(draw_line((x.at(before), 7), (x.at(after), 7), f"bar c{colour}"))
        parts.append(draw_dot(x.at(before), 7, "hollow", 3.4))
    parts.append(draw_dot(x.at(after), 7, f"c{colour} full", 4))
    return draw_frame(120, 14, "", parts)


def draw_shares(shares: Mapping[str, float]) -> Markup:
    """Draw the parts of a whole as one bar, each with its name and value below."""
    total, start, parts = sum(shares.values()) or 1.0, 0.0, []
    for number, (name, value) in enumerate(shares.items()):
        width = round(400 * value / total, 1)
        parts.append(draw_box(start, 0, max(0.5, width - 1), 12, f"c{number}"))
        last = number == len(shares) - 1
        place = (400.0, "e") if last and number else (start, "")
        parts.append(draw_text(place[0], 28, f"{name} {format_number(value)}", place[1]))
        start += width
    return draw_frame(
        400, 34, ", ".join(f"{k} {format_number(v)}" for k, v in shares.items()), parts
    )


def draw_places(places: Sequence[Point], groups: Sequence[int], title: str) -> Markup:
    """Draw the map small, for the margin and for paper; a group's colour is that of its number."""
    x, y = Axis(0, 1, 6, 312), Axis(0, 1, 6, 242)
    by_group: dict[int, list[Point]] = {}
    for (across, down), group in zip(places, groups):
        by_group.setdefault(group, []).append((x.at(across), y.at(down)))
    parts = [
        draw_dots(points, f"c{group % 10}" if group >= 0 else "k-other")
        for group, points in sorted(by_group.items())
    ]
    return draw_frame(318, 248, f"Map of the images, {title}", parts)


def draw_interval(score: Score, x: Axis, run: int, baselines: Sequence[Score]) -> Markup:
    """Draw a run's score in a cell of a table, with the scores of the baselines as thin lines."""
    parts = [draw_line((x.at(value), 0), (x.at(value), 26), "gr") for value, _ in x.ticks(4)]
    parts += [
        draw_mark("line-" + name_kind(each.features), x.at(each.value), 13) for each in baselines
    ]
    if score.interval:
        parts.append(
            draw_line(
                (x.at(score.interval[0]), 13), (x.at(score.interval[1]), 13), f"bar r{run % 8}"
            )
        )
    parts.append(draw_dot(x.at(score.value), 13, f"full r{run % 8}"))
    return draw_frame(170, 26, "", parts)


def draw_ticks(x: Axis) -> Markup:
    """Draw the numbers above a column of intervals."""
    return draw_frame(
        170, 14, "", [draw_text(x.at(value), 11, text, "m") for value, text in x.ticks(4)]
    )


def draw_sweep(
    points: Sequence[tuple[float, int, Sequence[Score]]], baselines: Sequence[Score], name: str
) -> Markup:
    """Draw scores against the value of a key; runs of one value stand side by side."""
    scores = [score for _, _, each in points for score in each]
    values = [v for score in [*scores, *baselines] for v in (score.interval or ()) + (score.value,)]
    keys = [value for value, _, _ in points]
    low, high = min(keys), max(keys)
    if low > 0 and high >= 8 * low:
        x = Axis(low / (high / low) ** 0.1, high * (high / low) ** 0.1, 46, 456, log=True)
    else:
        x = fit_axis(low, high, 46, 456)
    y = fit_axis(min(values), min(100.0, max(values)), 190, 8)
    parts = []
    for value, text in y.ticks(5):
        parts += [
            draw_line((46, y.at(value)), (456, y.at(value)), "gr"),
            draw_text(40, y.at(value) + 4, text, "e"),
        ]
    parts += [draw_text(x.at(value), 208, text, "m") for value, text in x.ticks(6)]
    for each in baselines:
        kind = name_kind(each.features)
        parts.append(draw_line((46, y.at(each.value)), (456, y.at(each.value)), f"ref k-{kind}"))
        parts.append(
            draw_text(
                50,
                y.at(each.value) - 4,
                f"{each.features} {format_points(each.value)}",
                f"halo f-{kind}",
            )
        )
    seen: dict[float, int] = {}
    for value, run, each_scores in points:
        for number, score in enumerate(each_scores):
            count = seen[value] = seen.get(value, -1) + 1
            across = x.at(value) + (count + 1) // 2 * 11 * (1 if count % 2 else -1)
            if score.interval:
                ends = (across, y.at(score.interval[0])), (across, y.at(score.interval[1]))
                parts.append(draw_line(*ends, f"bar run r{run % 8} n{run}"))
            shape = "full" if number == 0 else "open"
            parts.append(draw_dot(across, y.at(score.value), f"{shape} run r{run % 8} n{run}"))
    return draw_frame(470, 214, f"Scores against {name}", parts)
