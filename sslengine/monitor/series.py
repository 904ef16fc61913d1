"""The history of one metric: its last values, and the mean of all of them."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from functools import reduce
from itertools import islice
from operator import add
from statistics import median
from typing import Any

KEPT = 1000  # values, unless the window is larger


class Series:
    def __init__(self, window: int = 20, keep: bool = True) -> None:
        """window: how many values are smoothed over; keep: is it in checkpoints?"""
        self.window, self.keep = window, keep
        self._values: deque[float] = deque(maxlen=max(KEPT, window))
        self._sum = 0.0
        self._count = 0

    def __len__(self) -> int:
        """How many values there were, those that are no longer kept included."""
        return self._count

    def extend(self, values: Sequence[float]) -> None:
        if self.window > (self._values.maxlen or 0):
            self._values = deque(self._values, maxlen=self.window)
        self._values.extend(values)
        self._sum = reduce(add, values, self._sum)
        self._count += len(values)

    def values(self, window: int | None = None) -> list[float]:
        """The last ones, oldest first; None: all that are kept."""
        return list(islice(reversed(self._values), window))[::-1]

    def latest(self) -> float:
        return self._values[-1]

    def median(self, window: int | None = None) -> float:
        """NaN if one of the values is."""
        values = self.values(self.window if window is None else window)
        return math.nan if any(map(math.isnan, values)) else float(median(values))

    def average(self, window: int | None = None) -> float:
        values = self.values(self.window if window is None else window)
        return sum(values) / len(values)

    def global_average(self) -> float:
        """Of all values since the start of the run."""
        return self._sum / self._count

    def state_dict(self) -> dict[str, Any]:
        return {
            "window": self.window,
            "values": list(self._values),
            "sum": self._sum,
            "count": self._count,
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Series:
        series = cls(int(state["window"]))
        series._values.extend(state["values"])
        series._sum, series._count = float(state["sum"]), int(state["count"])
        return series
