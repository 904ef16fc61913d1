"""Fit what changes over epochs into drawings: the template drawings.html.j2 writes them as SVG."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

import numpy as np

from sslengine.report.content import Curve, Health
from sslengine.report.scale import (
    Axis,
    find_range,
    fit_axis,
    format_number,
    format_points,
    keep_records,
    smooth_series,
)

POINTS = 240  # of a curve that are drawn
# Ends of the axes: the same for all, so that they are in line.
_LEVEL, _UPRIGHT = (46, 314), (128, 8)
Pair = tuple[float, float]
Series = TypeVar("Series", Curve, Health)


class Stroke(NamedTuple):
    kind: str  # classes of style.css
    epochs: Sequence[float]
    values: Sequence[float]


class Plot(NamedTuple):
    """Lines over one axis of epochs, drawn once for each upright axis; no axis: nothing to draw."""

    title: str
    label: str  # for who cannot see it
    x: Axis
    axes: Mapping[str, Axis]
    lines: Sequence[Stroke]
    caption: str = ""
    last: str = ""


def thin(series: Series) -> Series:
    """Leave out most records of a long series; the lowest and the highest ones stay."""
    kept = keep_records(series.values, POINTS)
    epochs, values = [series.epochs[i] for i in kept], [series.values[i] for i in kept]
    return replace(series, epochs=epochs, values=values)


def find_span(all_series: Sequence[Curve | Health]) -> Pair:
    """Find the epochs that all drawings have as their axis."""
    epochs = [epoch for series in all_series for epoch in series.epochs]
    low, high = find_range([0.0, *epochs]) or (0.0, 0.0)
    return low, high or 1.0


def write_last(curve: Curve) -> str:
    last = curve.values[-1] if curve.values else math.nan
    return f"{format_points(last)} %" if curve.percent else format_number(last)


def style_run(run: int) -> str:
    """Give the classes in style.css of a run: up to 32 differ in colour or dashes."""
    return f"r{run % 8} d{(run + run // 8) % 4}"


def draw_path(line: Stroke, x: Axis, y: Axis) -> str:
    """Write a path with a gap where there is no finite value."""
    steps, command = [], "M{} {}h0"
    for epoch, value in zip(line.epochs, line.values):
        known = math.isfinite(value) and (value > 0 or not y.log)
        if known:
            steps.append(command.format(x.at(epoch), y.at(value)))
        command = "L{} {}" if known else "M{} {}h0"
    return "".join(steps)


def plot_curve(curve: Curve, shown: Curve, span: Pair) -> Plot:
    """Plot the records that are shown and, above them, medians of all.

    The hundredth of the records at each end that would flatten the medians lies outside of the
    drawing; the caption names it.
    """
    finite = [value for value in curve.values if math.isfinite(value)]
    told = [curve.caption] if curve.caption else []
    lines, ends = [Stroke("l", shown.epochs, shown.values)], finite
    if curve.smooth > 1 and finite:
        lines = [lines[0]._replace(kind="raw"), _smooth(curve, "l median")]
        inner = np.quantile(finite, (0.01, 0.99)).tolist() if len(finite) >= 50 else finite
        ends = [*inner, *lines[1].values]
        middle, reach = (min(ends) + max(ends)) / 2, max(ends) - min(ends)
        for word, value in (("Lowest", min(finite)), ("Highest", max(finite))):
            if abs(value - middle) > reach:
                epoch = curve.epochs[list(curve.values).index(value)]
                told.append(f"{word}: {format_number(value)}, in epoch {format_number(epoch)}.")
    broken = [at for at, value in zip(curve.epochs, curve.values) if not math.isfinite(value)]
    told += [f"Not finite in epoch {format_number(epoch)}." for epoch in broken[:1]]
    plot = _plot(curve.title, _describe(curve), span, lines, ends)
    return plot._replace(caption=" ".join(told), last=write_last(curve))


def plot_runs(curves: Sequence[tuple[int, Curve]], span: Pair) -> Plot:
    """Plot one metric of several runs, each with its number's colour and dashes."""
    lines = [_smooth(each, f"l run {style_run(run)} n{run}") for run, each in curves]
    ends = [value for line in lines for value in line.values]
    label, first = "; ".join(_describe(each) for _, each in curves), curves[0][1]
    return _plot(first.title, label, span, lines, ends)._replace(caption=first.caption)


def plot_spectra(spectra: Mapping[str, Sequence[float]]) -> Plot:
    """Plot the logarithms of singular values over their rank."""
    kept = {kind: keep_records(values, POINTS) for kind, values in spectra.items()}
    lines = [
        Stroke(
            f"l k-{kind}", [i + 1.0 for i in ranks], [max(spectra[kind][i], 1e-6) for i in ranks]
        )
        for kind, ranks in kept.items()
    ]
    span = (1.0, max(2.0, *(line.epochs[-1] for line in lines)))
    plot = _plot("Spectrum of the features", ", ".join(spectra), span, lines, [1.0])
    low = min(value for line in lines for value in line.values)
    return plot._replace(axes={"only": fit_axis(0.99 * low, 1.0, *_UPRIGHT, log=True)})


def plot_health(health: Health, span: Pair) -> Plot:
    """Plot a metric for a strip with its healthy range; what lies outside is a second line."""
    low = -math.inf if health.low is None else health.low
    high = math.inf if health.high is None else health.high
    outside = [math.nan if low <= value <= high else value for value in health.values]
    found = find_range([*health.values, low, high])
    return Plot(
        health.title, _describe(health), Axis(*span, 3, 427),
        {"only": fit_axis(*found, 43, 3)} if found else {},
        [
            Stroke("l k-ink", health.epochs, health.values),
            Stroke("l k-bad", health.epochs, outside),
        ],
    )  # fmt: skip


def _plot(
    title: str, label: str, span: Pair, lines: Sequence[Stroke], values: Sequence[float]
) -> Plot:
    """Give an axis of numbers and, where it shows more, one of logarithms: style.css switches."""
    axes = {}
    if values:
        low, high = min(values), max(values)
        axes["only"] = fit_axis(low, high, *_UPRIGHT, zero=True)
        if low > 0 and high >= 2 * low:
            axes = {"lin": axes["only"], "log": fit_axis(low, high, *_UPRIGHT, log=True)}
    return Plot(title, label, Axis(*span, *_LEVEL), axes, lines)


def _smooth(curve: Curve, kind: str) -> Stroke:
    return Stroke(kind, *smooth_series(curve.epochs, curve.values, curve.smooth, POINTS))


def _describe(curve: Curve | Health) -> str:
    """Say a curve in words: its ends, its lowest and its highest value."""
    low, high = find_range(curve.values) or (math.nan, math.nan)
    numbers = (curve.values[0], curve.epochs[0], curve.values[-1], curve.epochs[-1], low, high)
    told = "{}: from {} in epoch {} to {} in epoch {}; lowest {}, highest {}"
    return told.format(curve.title, *map(format_number, numbers))
