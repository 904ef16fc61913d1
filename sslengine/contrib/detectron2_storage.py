"""`self.trainer.storage` of a hook written for detectron2, on top of `task.storage`.

It has put_scalar(s), put_image, put_histogram, history, histories, latest,
latest_with_smoothing_hint, iter and name_scope. Metrics go to the run's store, which writes them
at LOG_FREQUENCY. A hook can read its own values at once, and other metrics once the store has
read them.
"""

from __future__ import annotations

import re
import statistics
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from sslengine.errors import TrainingError
from sslengine.monitor.store import MetricStore

WINDOW = 20  # of values with a smoothing hint
KEPT = 100_000  # values per name


class History:
    """A metric's history with detectron2's method names."""

    def __init__(self, values: Callable[[], list[float]], mean: Callable[[], float]) -> None:
        self._values, self._mean = values, mean

    def values(self) -> list[float]:
        return self._values()

    def latest(self) -> float:
        return self._values()[-1]

    def median(self, window_size: int) -> float:
        return statistics.median(self._values()[-window_size:])

    def avg(self, window_size: int) -> float:
        return statistics.fmean(self._values()[-window_size:])

    def global_avg(self) -> float:
        return self._mean()


class Put:
    """A hook's values of one name. Tensors are read on request, so no step synchronises."""

    def __init__(self) -> None:
        self.smoothed = True
        self.at = 0  # the iteration of the last value
        self._raw: deque[Any] = deque(maxlen=KEPT)
        self._sum, self._summed, self._unread = 0.0, 0, 0

    def add(self, value: Any) -> None:
        self._raw.append(value)
        self._unread = min(self._unread + 1, KEPT)

    def values(self) -> list[float]:
        for place in range(len(self._raw) - self._unread, len(self._raw)):
            self._raw[place] = float(self._raw[place])
            self._sum += self._raw[place]
        self._summed, self._unread = self._summed + self._unread, 0
        return list(self._raw)

    def mean(self) -> float:
        self.values()
        return self._sum / self._summed


class StorageView:
    def __init__(self, store: MetricStore, iteration: Callable[[], int]) -> None:
        self._store, self._iteration = store, iteration
        self._scope = ""
        self._put: dict[str, Put] = {}
        self._written_as: dict[str, str] = {}

    @property
    def iter(self) -> int:
        return self._iteration()

    def put_scalar(
        self, name: str, value: Any, smoothing_hint: bool = True, cur_iter: int | None = None
    ) -> None:
        """value: a number, or a tensor with one element. cur_iter is ignored."""
        value = value.detach().clone() if isinstance(value, Tensor) else float(value)
        put = self._put.setdefault(self._scope + name, Put())
        put.smoothed, put.at = smoothing_hint, self.iter
        put.add(value)
        self._write(self._scope + name, value, WINDOW if smoothing_hint else 1)

    def put_scalars(
        self, *, smoothing_hint: bool = True, cur_iter: int | None = None, **values: Any
    ) -> None:
        for name, value in values.items():
            self.put_scalar(name, value, smoothing_hint)

    def _write(self, name: str, value: Any, window: int) -> None:
        """A name that the engine uses itself, such as `lr`, is written as `hook/lr`."""
        known = self._written_as.get(name)
        if known is not None:
            self._store.put_scalar(known, value, window=window)
            return
        clean = re.sub(r"[^\w.\- /]", "_", name).strip("/") or "unnamed"
        try:
            self._store.put_scalar(clean, value, window=window)
        except TrainingError:
            clean = f"hook/{clean}"
            self._store.put_scalar(clean, value, window=window)
        self._written_as[name] = clean

    def put_image(self, img_name: str, img_tensor: Any) -> None:
        self._store.put_image(self._scope + img_name, img_tensor)

    def put_histogram(self, hist_name: str, hist_tensor: Any, bins: int = 1000) -> None:
        self._store.put_histogram(self._scope + hist_name, hist_tensor, bins)

    def history(self, name: str) -> History:
        put = self._put.get(name)
        if put is not None:
            return History(put.values, put.mean)
        series = self._store.history(name)
        return History(series.values, series.global_average)

    def histories(self) -> dict[str, History]:
        return {name: self.history(name) for name in self._put}

    def latest(self) -> dict[str, tuple[float, int]]:
        """name -> (the last value, its iteration), for the hook's own values."""
        return {name: (put.values()[-1], put.at) for name, put in self._put.items()}

    def latest_with_smoothing_hint(self, window_size: int = WINDOW) -> dict[str, tuple[float, int]]:
        """The same, with the median of the last values for those with a smoothing hint."""
        return {
            name: (self.history(name).median(window_size if put.smoothed else 1), put.at)
            for name, put in self._put.items()
        }

    @contextmanager
    def name_scope(self, name: str) -> Iterator[None]:
        """Prefix the names of this block with `name/`."""
        before, self._scope = self._scope, name.rstrip("/") + "/"
        try:
            yield
        finally:
            self._scope = before
