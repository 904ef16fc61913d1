"""Draw what changes over epochs: curves, the strips of collapse metrics, spectra."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from markupsafe import Markup

from sslengine.report.content import Curve, Health
from sslengine.report.scale import (
    Axis,
    find_range,
    fit_axis,
    format_number,
    keep_records,
    smooth_series,
)
from sslengine.report.svg import Drawing

# The box of a curve's drawing: the same for all, so that their axes are in line.
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 320, 150, 46, 314, 8, 128
Pair = tuple[float, float]
_EMPTY = Markup('<p class="note">No finite value.</p>')


class _Line(NamedTuple):
    kind: str
    epochs: Sequence[float]
    values: Sequence[float]


def _smooth(curve: Curve, kind: str, width: int, points: int) -> _Line:
    return _Line(kind, *smooth_series(curve.epochs, curve.values, width, points))


def _choose_lines(curve: Curve, points: int) -> list[_Line]:
    """Give the records, and their medians over two widths where the curve is to be smoothed."""
    kept = keep_records(curve.values, points)
    epochs, values = [curve.epochs[i] for i in kept], [curve.values[i] for i in kept]
    if curve.smooth <= 1:
        return [_Line("l", epochs, values)]
    medians = (
        _smooth(curve, f"l s{number}", width * curve.smooth, points)
        for number, width in ((1, 1), (2, 4))
    )
    return [_Line("raw", epochs, values), *medians]


def _choose_range(lines: Sequence[_Line]) -> tuple[float, float] | None:
    """Leave out the hundredth of the records at each end that would flatten the rest."""
    values = sorted(value for value in lines[0].values if math.isfinite(value))
    if len(lines) > 1 and len(values) >= 50:
        cut = max(1, len(values) // 100)
        values = values[cut:-cut]
    return find_range([*values, *(v for line in lines[1:] for v in line.values)])


def _draw_scale(drawing: Drawing, lines: Sequence[_Line], x: Axis, y: Axis) -> None:
    for value, text in y.ticks(4):
        drawing.line(LEFT, y.at(value), RIGHT, y.at(value), "gr")
        drawing.text(LEFT - 6, y.at(value) + 4, text, "e")
    for line in lines:
        points = [
            (x.at(epoch), y.at(value))
            if math.isfinite(value) and (value > 0 or not y.log)
            else None
            for epoch, value in zip(line.epochs, line.values)
        ]
        drawing.path(points, line.kind)
        if len(points) <= 24:
            drawing.points((point for point in points if point), line.kind)


def _draw_plot(
    lines: Sequence[_Line], span: Pair, values: Pair, restarts: Sequence[float]
) -> Drawing:
    """Draw the axes once in numbers and, where all values allow it, once in their logarithms."""
    drawing = Drawing(WIDTH, HEIGHT)
    x = Axis(*span, LEFT, RIGHT)
    drawing.line(LEFT, BOTTOM, RIGHT, BOTTOM, "ax")
    for value, text in x.ticks(5):
        drawing.text(x.at(value), BOTTOM + 16, text, "m")
    for epoch in restarts:
        drawing.line(x.at(epoch), TOP, x.at(epoch), BOTTOM, "ev")
    low, high = values
    has_log = low > 0 and high >= 2 * low
    with drawing.group("lin" if has_log else "only"):
        _draw_scale(drawing, lines, x, fit_axis(low, high, BOTTOM, TOP, zero=True))
    if has_log:
        with drawing.group("log"):
            _draw_scale(drawing, lines, x, Axis(low * 0.93, high * 1.07, BOTTOM, TOP, log=True))
    return drawing


def draw_curve(
    curve: Curve, span: tuple[float, float], restarts: Sequence[float], points: int, number: int
) -> tuple[Markup, str]:
    """Draw a curve over epochs; style.css switches between its smoothed and log variants.

    The second is a sentence about a record that lies outside of the drawing.
    """
    lines = _choose_lines(curve, points)
    values, found = _choose_range(lines), find_range(curve.values)
    if not values or not found:
        return _EMPTY, ""
    drawing = _draw_plot(lines, span, values, restarts)
    records = zip(lines[0].epochs, lines[0].values)
    broken = next((epoch for epoch, value in records if not math.isfinite(value)), None)
    if broken is not None:
        x = Axis(*span, LEFT, RIGHT).at(broken)
        drawing.line(x, TOP, x, BOTTOM, "l k-bad")
        drawing.text(x - 4, TOP + 12, "not finite", "e halo f-bad")
    drawing.line(0, TOP, 0, BOTTOM, "cursor")
    box = f"{LEFT} {RIGHT} {WIDTH} {span[0]:g} {span[1]:g}"
    hidden, reach = [], 0.5 * (values[1] - values[0])
    for word, value in zip(("Lowest", "Highest"), found):
        if not values[0] - reach <= value <= values[1] + reach:
            epoch = curve.epochs[list(curve.values).index(value)]
            hidden.append(f"{word}: {format_number(value)}, in epoch {format_number(epoch)}.")
    svg = drawing.svg(_describe(curve), f' data-curve="{number}" data-box="{box}"')
    return svg, " ".join(hidden)


def _describe(curve: Curve) -> str:
    """Say a curve in words: its ends, its lowest and its highest value."""
    low, high = find_range(curve.values) or (math.nan, math.nan)
    first, last = (format_number(curve.values[i]) for i in (0, -1))
    start, end = (format_number(curve.epochs[i]) for i in (0, -1))
    ends = f"{curve.title}: from {first} in epoch {start} to {last} in epoch {end}"
    return f"{ends}; lowest {format_number(low)}, highest {format_number(high)}"


def draw_overlay(curves: Sequence[tuple[int, Curve]], span: tuple[float, float]) -> Markup:
    """Draw one metric of several runs, each with its number's colour and dashes."""
    lines = [
        _smooth(each, f"l run {style_run(run)} n{run}", each.smooth, 200) for run, each in curves
    ]
    values = find_range(value for line in lines for value in line.values)
    if not values:
        return _EMPTY
    label = "; ".join(_describe(curve) for _, curve in curves)
    return _draw_plot(lines, span, values, ()).svg(label)


def style_run(run: int) -> str:
    """Give the classes in style.css of a run: up to 32 differ in colour or dashes."""
    return f"r{run % 8} d{(run + run // 8) % 4}"


def draw_strip(health: Health, span: tuple[float, float], restarts: Sequence[float]) -> Markup:
    """Draw a metric over epochs before its healthy range; what lies outside is red."""
    found = find_range(health.values)
    if not found:
        return _EMPTY
    # A metric that hardly changes is drawn flat. An end of the range that is far from the values
    # lies outside of the drawing, or it would flatten them.
    middle, least = sum(found) / 2, 0.1 * max(abs(found[0]), abs(found[1]), 1e-9)
    low, high = min(found[0], middle - least), max(found[1], middle + least)
    ends = [each for each in (health.low, health.high) if each is not None]
    ends = [each for each in ends if abs(each - middle) <= 2 * (high - low)]
    y, x = fit_axis(min([low, *ends]), max([high, *ends]), 43, 3), Axis(*span, 3, 427)
    bottom = y.low if health.low is None else health.low
    top = y.high if health.high is None else health.high
    drawing = Drawing(430, 46)
    if health.low is not None or health.high is not None:
        drawing.box(0, y.at(top), 430, max(1.0, y.at(bottom) - y.at(top)), "band")
    for epoch in restarts:
        drawing.line(x.at(epoch), 0, x.at(epoch), 46, "ev")
    records = [(health.epochs[i], health.values[i]) for i in keep_records(health.values, 300)]
    records = [record for record in records if math.isfinite(record[1])]
    points = [(x.at(epoch), y.at(value)) for epoch, value in records]
    outside = [not bottom <= value <= top for _, value in records]
    drawing.path(points, "l k-ink")
    drawing.path((point if out else None for point, out in zip(points, outside)), "l k-bad")
    drawing.dot(*points[-1], "f-bad" if outside[-1] else "f-ink", 3.5)
    first, last = (format_number(health.values[i]) for i in (0, -1))
    return drawing.svg(f"{health.title}: from {first} to {last}")


def draw_spectra(spectra: Mapping[str, Sequence[float]]) -> Markup:
    """Draw singular values over their rank, both in logarithms; titles stand at the ends."""
    kept = {title: [max(value, 1e-6) for value in each] for title, each in spectra.items()}
    longest = max(map(len, kept.values()))
    x = Axis(1, max(2, longest), 50, 340, log=True)
    y = Axis(min(map(min, kept.values())) * 0.9, 1.1, 190, 8, log=True)
    drawing, ends = Drawing(430, 214), []
    for value, text in y.ticks(6):
        drawing.line(50, y.at(value), 340, y.at(value), "gr")
        drawing.text(44, y.at(value) + 4, text, "e")
    for value, text in x.ticks(6):
        drawing.text(x.at(value), 208, text, "m")
    for title, values in kept.items():
        kind = "untrained" if "untrained" in title else "trained"
        ranks = sorted({round(longest ** (step / 150)) for step in range(151)})
        points = [(x.at(rank), y.at(values[rank - 1])) for rank in ranks if rank <= len(values)]
        drawing.path(points, f"l k-{kind}")
        ends.append((points[-1][1], title, kind))
    free = 0.0
    for height, title, kind in sorted(ends):
        free = max(height, free + 15)
        drawing.text(347, free + 4, title, f"b f-{kind}")
    return drawing.svg("Singular values: " + ", ".join(spectra))
