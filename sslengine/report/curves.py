"""Draw what changes over epochs: curves, the strips of collapse metrics, spectra."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from markupsafe import Markup

from sslengine.report.content import Curve, Health, Spectrum
from sslengine.report.scale import (
    Axis,
    find_range,
    fit_axis,
    format_number,
    keep_records,
    smooth_series,
)
from sslengine.report.svg import (
    draw_dots,
    draw_frame,
    draw_line,
    draw_mark,
    draw_path,
    draw_text,
    name_kind,
)

# The box of a curve's drawing: the same for all, so that their axes are in line.
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 320, 150, 46, 314, 8, 128


class _Line(NamedTuple):
    kind: str
    epochs: Sequence[float]
    values: Sequence[float]


def _smooth(curve: Curve, times: int, points: int) -> _Line:
    width = curve.smooth * times if curve.smooth > 1 else 1
    return _Line(
        f"l s{1 if times == 1 else 2}", *smooth_series(curve.epochs, curve.values, width, points)
    )


def _choose_lines(curve: Curve, points: int) -> list[_Line]:
    """Give the records, and their medians over two widths where the curve is to be smoothed."""
    kept = keep_records(curve.values, points)
    epochs, values = [curve.epochs[i] for i in kept], [curve.values[i] for i in kept]
    if curve.smooth <= 1:
        return [_Line("l", epochs, values)]
    return [_Line("raw", epochs, values), _smooth(curve, 1, points), _smooth(curve, 4, points)]


def _choose_range(lines: Sequence[_Line], others: Iterable[float]) -> tuple[float, float] | None:
    """Leave out the hundredth of the records that would flatten the rest."""
    values = sorted(v for v in lines[0].values if math.isfinite(v))
    if len(lines) > 1 and len(values) >= 50:
        cut = max(1, len(values) // 100)
        values = values[cut:-cut]
    return find_range([*values, *others, *(v for line in lines[1:] for v in line.values)])


def _draw_scale(lines: Sequence[_Line], x: Axis, y: Axis, references: Mapping[str, float]) -> str:
    parts = []
    for value, text in y.ticks(4):
        height = y.at(value)
        parts += [
            draw_line((x.start, height), (x.end, height), "gr"),
            draw_text(LEFT - 6, height + 4, text, "e"),
        ]
    for name, value in references.items():
        kind = name_kind(name)
        parts.append(draw_line((x.start, y.at(value)), (x.end, y.at(value)), f"ref k-{kind}"))
        label = f"{name} {format_number(value)}"
        parts.append(draw_text(x.start + 4, y.at(value) - 4, label, f"halo f-{kind}"))
    for line in lines:
        usable = (lambda v: v > 0) if y.log else math.isfinite
        points = [
            (x.at(epoch), y.at(value)) if usable(value) and math.isfinite(value) else None
            for epoch, value in zip(line.epochs, line.values)
        ]
        parts.append(draw_path(points, line.kind))
        if len(points) <= 40:
            parts.append(draw_dots((point for point in points if point), line.kind))
    return "".join(parts)


def _draw_plot(
    lines: Sequence[_Line],
    span: tuple[float, float],
    values: tuple[float, float],
    references: Mapping[str, float],
    restarts: Sequence[float],
) -> list[str]:
    """Draw the axes once in numbers and, where all values allow it, once in their logarithms."""
    x = Axis(span[0], span[1] if span[1] > span[0] else span[0] + 1, LEFT, RIGHT)
    parts = [draw_line((LEFT, BOTTOM), (RIGHT, BOTTOM), "ax")]
    parts += [draw_text(x.at(value), BOTTOM + 16, text, "m") for value, text in x.ticks(5)]
    parts += [draw_line((x.at(each), TOP), (x.at(each), BOTTOM), "ev") for each in restarts]
    low, high = values
    drawn = _draw_scale(lines, x, fit_axis(low, high, BOTTOM, TOP, zero=True), references)
    if low > 0 and high >= 2 * low:
        log = Axis(low * 0.93, high * 1.07, BOTTOM, TOP, log=True)
        drawn = (
            f'<g class="lin">{drawn}</g><g class="log">{_draw_scale(lines, x, log, references)}</g>'
        )
    return [*parts, drawn]


def draw_curve(
    curve: Curve, span: tuple[float, float], restarts: Sequence[float], points: int, number: int
) -> Markup:
    """Draw a curve over epochs; style.css switches between its smoothed and log variants."""
    lines = _choose_lines(curve, points)
    values = _choose_range(lines, curve.references.values())
    if values is None:
        return Markup('<p class="note">No finite value.</p>')
    parts = _draw_plot(lines, span, values, curve.references, restarts)
    broken = [e for e, value in zip(lines[0].epochs, lines[0].values) if not math.isfinite(value)]
    if broken:
        end = Axis(*span, LEFT, RIGHT).at(broken[0]) if span[1] > span[0] else RIGHT
        parts += [
            draw_line((end, TOP), (end, BOTTOM), "l k-bad"),
            draw_text(end - 4, TOP + 12, "not finite", "e f-bad"),
        ]
    plot = f' data-curve="{number}" data-box="{LEFT} {RIGHT} {WIDTH} {span[0]:g} {span[1]:g}"'
    return draw_frame(WIDTH, HEIGHT, describe_curve(curve), [*parts, _cursor()], plot)


def _cursor() -> str:
    return f'<path class="cursor" d="M0 {TOP}V{BOTTOM}"/>'


def describe_curve(curve: Curve) -> str:
    """Say a curve in words: its ends, its lowest and its highest value."""
    found = find_range(curve.values)
    if found is None:
        return f"{curve.title}: no finite value"
    return (
        f"{curve.title}: from {format_number(curve.values[0])} at epoch "
        f"{format_number(curve.epochs[0])} to {format_number(curve.values[-1])} at epoch "
        f"{format_number(curve.epochs[-1])}; lowest {format_number(found[0])}, "
        f"highest {format_number(found[1])}"
    )


def find_hidden(curve: Curve, points: int) -> str:
    """Name the largest record where it lies outside of the drawing; else nothing."""
    values, found = _choose_range(_choose_lines(curve, points), ()), find_range(curve.values)
    if not values or not found or found[1] <= values[1] + 0.5 * (values[1] - values[0]):
        return ""
    epoch = curve.epochs[list(curve.values).index(found[1])]
    return f"Highest: {format_number(found[1])}, in epoch {format_number(epoch)}."


def draw_overlay(curves: Sequence[tuple[int, Curve]], span: tuple[float, float]) -> Markup:
    """Draw one metric of several runs, each with its number's colour and dashes."""
    lines = []
    for run, curve in curves:
        _, epochs, values = _smooth(curve, 1, 200)
        lines.append(_Line(f"l run r{run % 8} d{run // 8 % 4} n{run}", epochs, values))
    values = find_range(value for line in lines for value in line.values)
    if values is None:
        return Markup('<p class="note">No finite value.</p>')
    label = "; ".join(describe_curve(curve) for _, curve in curves)
    return draw_frame(WIDTH, HEIGHT, label, _draw_plot(lines, span, values, {}, ()))


def draw_strip(health: Health, span: tuple[float, float], restarts: Sequence[float]) -> Markup:
    """Draw a metric over epochs before its healthy range; what lies outside is red."""
    found = find_range(health.values)
    if found is None:
        return Markup("")
    low, high = found
    # An end of the range far from the values would make a flat line of them.
    reach = 1.5 * max(high - low, 0.1 * max(abs(high), abs(low)), 1e-12)
    ends = [
        end
        for end in (health.low, health.high)
        if end is not None and low - reach <= end <= high + reach
    ]
    y = fit_axis(min([low, *ends]), max([high, *ends]), 43, 3)
    x = Axis(span[0], max(span[1], span[0] + 1e-9), 3, 427)
    bottom = y.low if health.low is None else health.low
    top = y.high if health.high is None else health.high
    parts = []
    if health.low is not None or health.high is not None:
        up, down = y.at(top), y.at(bottom)
        parts.append(
            f'<rect class="band" x="0" y="{up:g}" width="430" height="{max(1.0, down - up):g}"/>'
        )
    parts += [draw_line((x.at(each), 0), (x.at(each), 46), "ev") for each in restarts]
    kept = keep_records(health.values, 300)
    points = [
        (x.at(health.epochs[i]), y.at(health.values[i]), bottom <= health.values[i] <= top)
        for i in kept
    ]
    parts.append(draw_path(((px, py) for px, py, _ in points), "l k-ink"))
    parts.append(draw_path(((px, py) if not well else None for px, py, well in points), "l k-bad"))
    (last_x, last_y, well) = points[-1]
    parts.append(draw_mark("ink" if well else "bad", last_x, last_y, 3.5))
    label = f"from {format_number(health.values[0])} to {format_number(health.values[-1])}"
    return draw_frame(430, 46, label, parts)


def draw_spectra(spectra: Sequence[Spectrum]) -> Markup:
    """Draw singular values over their rank, both in logarithms; titles stand at the ends."""
    kept = [[max(value, 1e-6) for value in each.values] for each in spectra]
    longest = max(len(values) for values in kept)
    x = Axis(1, max(2, longest), 50, 340, log=True)
    y = Axis(min(min(values) for values in kept) * 0.9, 1.1, 190, 8, log=True)
    parts = []
    for value, text in y.ticks(6):
        parts += [
            draw_line((50, y.at(value)), (340, y.at(value)), "gr"),
            draw_text(44, y.at(value) + 4, text, "e"),
        ]
    parts += [draw_text(x.at(value), 208, text, "m") for value, text in x.ticks(6)]
    free = 0.0
    ends = []
    for number, (spectrum, values) in enumerate(zip(spectra, kept)):
        last = number == len(spectra) - 1
        kind = "untrained" if "untrained" in spectrum.title else "trained" if last else "mid"
        ranks = sorted({round(longest ** (step / 150)) for step in range(151)})
        points = [(x.at(rank), y.at(values[rank - 1])) for rank in ranks if rank <= len(values)]
        parts.append(draw_path(points, f"l k-{kind}"))
        ends.append((points[-1][1], spectrum.title, kind))
    for height, title, kind in sorted(ends):
        free = max(height, free + 15)
        parts.append(draw_text(347, free + 4, title, f"b f-{kind}"))
    return draw_frame(
        430, 214, "Singular values: " + ", ".join(each.title for each in spectra), parts
    )
