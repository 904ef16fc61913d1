"""Fit numbers into a drawing: steps of an axis, thinned and smoothed series, short texts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

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
    finite = [value for value in values if math.isfinite(value)]
    return (min(finite), max(finite)) if finite else None


@dataclass(frozen=True)
class Axis:
    """Place numbers between two ends of a drawing."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def at(self, value: float) -> float:
        """Give the position of a number; one outside the axis is put at its end, NaN at `low`."""
        value = min(max(self.low, value), self.high)
        if self.log:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 1)

    def ticks(self, most: int) -> list[tuple[float, str]]:
        """Choose at most so many round numbers, each with its text."""
        if self.log:
            return [(value, format_number(value)) for value in _choose_powers(self, most)]
        raw = (self.high - self.low) / most
        power = 10.0 ** math.floor(math.log10(raw))
        step = next(power * each for each in (1, 2, 5, 10) if power * each >= raw * 0.999)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        values = [number * step for number in range(first, last + 1)]
        decimals = max(0, -math.floor(math.log10(step) + 1e-9))
        if max(abs(self.low), abs(self.high)) >= 1e6 or decimals > 5:
            return [(value, format_number(value)) for value in values]
        texts = [f"{value:,.{decimals}f}" if value else "0" for value in values]
        return [(value, text.replace("-", _MINUS)) for value, text in zip(values, texts)]


def _choose_powers(axis: Axis, most: int) -> list[float]:
    """Choose 1, 2 and 5 of each power of ten or, where they are too many, the powers alone."""
    powers = range(math.floor(math.log10(axis.low)), math.ceil(math.log10(axis.high)) + 1)
    steps = [float(f"{factor}e{power}") for power in powers for factor in (1, 2, 5)]
    inside = [each for each in steps if axis.low * 0.999 <= each <= axis.high * 1.001]
    if len(inside) <= most:
        return inside
    tens = [each for each in inside if each in steps[::3]]
    return tens[:: math.ceil(len(tens) / most)]


def fit_axis(
    low: float, high: float, start: float, end: float, zero: bool = False, log: bool = False
) -> Axis:
    """Make an axis with a margin around a range; `zero`: it begins at 0 where that is near."""
    if log:
        margin = (high / low) ** 0.05
        return Axis(low / margin, high * margin, start, end, log)
    span = (high - low) or abs(high) or 1.0
    margin = 0.05 * span if high > low else 0.5 * span
    bottom = 0.0 if zero and 0 <= low <= 0.6 * high else low - margin
    return Axis(bottom, high + margin, start, end)


def keep_records(values: Sequence[float], points: int) -> list[int]:
    """Choose records of a long series: the lowest and the highest of each stretch, both ends.

    The first value that is not finite is kept too.
    """
    total, numbers = len(values), np.asarray(values, dtype=float)
    if total <= points:
        return list(range(total))
    finite = np.isfinite(numbers)
    kept = {0, total - 1, *np.flatnonzero(~finite)[:1].tolist()}
    for stretch in np.array_split(np.arange(total), points // 2):
        known = stretch[finite[stretch]]
        if known.size:
            kept |= {int(known[numbers[known].argmin()]), int(known[numbers[known].argmax()])}
    return sorted(kept)


def smooth_series(
    epochs: Sequence[float], values: Sequence[float], width: int, points: int
) -> tuple[list[float], list[float]]:
    """Give running medians over so many finite records, at about so many of them."""
    numbers, times = np.asarray(values, dtype=float), np.asarray(epochs, dtype=float)
    finite = np.isfinite(numbers)
    numbers, times = numbers[finite], times[finite]
    if not numbers.size:
        return [], []
    stretch = math.ceil(numbers.size / points)
    reach = min(max(width, stretch), numbers.size) // 2
    # Each end is mirrored at its last value, which does not bend a slope.
    padded = np.pad(numbers, reach, "reflect", reflect_type="odd")
    windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * reach + 1)
    chosen = slice((numbers.size - 1) % stretch, None, stretch)  # the last one is among them
    return times[chosen].tolist(), np.median(windows[chosen], axis=1).tolist()
