"""Fit numbers into a drawing: steps of an axis, thinned and smoothed series, short texts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

import numpy as np

_MINUS = "\N{MINUS SIGN}"


def format_number(value: float) -> str:
    """Write a number with the four digits that count: 2.551, 79.6, 1,024, 3e-8."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "∞" if value > 0 else f"{_MINUS}∞"
    size = abs(value)
    if size >= 1e6 or 0 < size < 1e-4:
        digits, power = f"{value:.2e}".split("e")
        text = f"{float(digits):g}e{int(power)}"
    else:
        text = f"{value:,.0f}" if size >= 1000 else f"{value:.4g}"
    return text.replace("-", _MINUS)


def format_points(value: float, signed: bool = False) -> str:
    """Write percent, or points between two of them, with one decimal."""
    # Adding 0 makes 0.0 of -0.0.
    return f"{round(value, 1) + 0.0:{'+' if signed else ''}.1f}".replace("-", _MINUS)


def name_metric(metric: str) -> str:
    """Write a metric as people do: knn_20 is kNN, k = 20."""
    known = metric.removeprefix("knn_")
    return f"kNN, k = {known}" if known != metric else metric.replace("linear", "linear probe")


def find_range(values: Iterable[float]) -> tuple[float, float] | None:
    """Give the lowest and the highest of the finite values; None: there is none."""
    numbers = np.fromiter(values, dtype=float)
    finite = numbers[np.isfinite(numbers)]
    return (float(finite.min()), float(finite.max())) if finite.size else None


@dataclass(frozen=True)
class Axis:
    """Place numbers between two ends of a drawing."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def at(self, value: float) -> float:
        """Give the position of a number; one outside the axis is put at its end."""
        value = min(max(value, self.low), self.high)
        if self.log:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 1)

    def ticks(self, most: int) -> list[tuple[float, str]]:
        """Choose at most so many round numbers, each with its text."""
        return _log_ticks(self, most) if self.log else _linear_ticks(self, most)


def fit_axis(low: float, high: float, start: float, end: float, zero: bool = False) -> Axis:
    """Make an axis with a margin around a range; `zero`: it begins at 0 where that is near."""
    span = (high - low) or abs(high) or 1.0
    margin = 0.05 * span if high > low else 0.5 * span
    bottom = 0.0 if zero and 0 <= low <= 0.6 * high else low - margin
    return Axis(bottom, high + margin, start, end)


def _linear_ticks(axis: Axis, most: int) -> list[tuple[float, str]]:
    raw = (axis.high - axis.low) / most
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * each for each in (1, 2, 5, 10) if power * each >= raw * 0.999)
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    largest = max(abs(axis.low), abs(axis.high))
    first, last = math.ceil(axis.low / step - 1e-9), math.floor(axis.high / step + 1e-9)
    values = [number * step for number in range(first, last + 1)]
    if largest >= 1e6 or decimals > 5:
        return [(value, format_number(value)) for value in values]
    texts = [f"{value:,.{decimals}f}" if value else "0" for value in values]
    return [(value, text.replace("-", _MINUS)) for value, text in zip(values, texts)]


def _log_ticks(axis: Axis, most: int) -> list[tuple[float, str]]:
    powers = range(math.floor(math.log10(axis.low)), math.ceil(math.log10(axis.high)) + 1)
    for factors in ((1, 2, 5), (1, 3), (1,)):
        found = [
            float(f"{factor}e{power}")
            for power in powers
            for factor in factors
            if axis.low * 0.999 <= float(f"{factor}e{power}") <= axis.high * 1.001
        ]
        if len(found) <= most:
            break
    every = math.ceil(len(found) / most) if found else 1
    return [(value, format_number(value)) for value in found[::every]]


def keep_records(values: Sequence[float], points: int) -> list[int]:
    """Choose records of a long series: the lowest and the highest of each stretch, both ends.

    The first value that is not finite is kept too.
    """
    total, numbers = len(values), np.asarray(values, dtype=float)
    if total <= points:
        return list(range(total))
    finite = np.isfinite(numbers)
    kept = {0, total - 1} | ({int(np.argmin(finite))} if not finite.all() else set())
    low, high = (np.where(finite, numbers, edge) for edge in (np.inf, -np.inf))
    ends = [number * total // (points // 2) for number in range(points // 2 + 1)]
    for start, end in pairwise(ends):
        if finite[start:end].any():
            kept |= {start + int(low[start:end].argmin()), start + int(high[start:end].argmax())}
    return sorted(kept)


def smooth_series(
    epochs: Sequence[float], values: Sequence[float], width: int, points: int
) -> tuple[list[float], list[float]]:
    """Give running medians over so many records, at most so many of them."""
    numbers, times = np.asarray(values, dtype=float), np.asarray(epochs, dtype=float)
    finite = np.isfinite(numbers)
    numbers, times = numbers[finite], times[finite]
    stretch = max(1, math.ceil(len(numbers) / points))
    if stretch > 1:
        # The first few are left out if they do not make a whole stretch.
        start = len(numbers) % stretch
        numbers = np.median(numbers[start:].reshape(-1, stretch), axis=1)
        times = times[start:].reshape(-1, stretch)[:, stretch // 2]
    reach = max(0, round(width / stretch) - 1) // 2
    medians = numbers.tolist()
    if reach:
        # Fewer at both ends, the same on each side: a slope is not bent there.
        sides = [min(reach, i, len(numbers) - 1 - i) for i in range(len(numbers))]
        medians = [
            median(numbers[i - side : i + side + 1].tolist()) for i, side in enumerate(sides)
        ]
    return times.tolist(), medians
