"""`self.trainer.storage` of a hook written for detectron2, on top of a small metric store.

What such hooks call: put_scalar(s), put_image, put_histogram, history, histories, latest,
latest_with_smoothing_hint, iter, name_scope. Values are put under the iteration of the step.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol


class History(Protocol):
    """The values of one name, as far back as the store goes."""

    def latest(self) -> float: ...
    def median(self, n: int) -> float: ...
    def avg(self, n: int) -> float: ...
    def global_avg(self) -> float: ...


class MetricStore(Protocol):
    """What the view needs of the store of a run."""

    def put_scalar(self, name: str, value: float) -> None: ...
    def put_image(self, name: str, array: Any) -> None: ...
    def put_histogram(self, name: str, values: Any) -> None: ...
    def history(self, name: str) -> History: ...


class StorageView:
    def __init__(self, store: MetricStore, iteration: Callable[[], int]) -> None:
        self._store, self._iteration = store, iteration
        self._scope = ""
        self._hints: dict[str, bool] = {}
        self._put_at: dict[str, int] = {}  # in which iteration a name was put last

    @property
    def iter(self) -> int:
        return self._iteration()

    def put_scalar(
        self, name: str, value: Any, smoothing_hint: bool = True, cur_iter: int | None = None
    ) -> None:
        """A number or a tensor of one; cur_iter is taken, the step's own iteration counts."""
        name = self._scope + name
        self._hints[name] = smoothing_hint
        self._put_at[name] = self.iter
        self._store.put_scalar(name, float(value))

    def put_scalars(
        self, *, smoothing_hint: bool = True, cur_iter: int | None = None, **values: Any
    ) -> None:
        for name, value in values.items():
            self.put_scalar(name, value, smoothing_hint)

    def put_image(self, img_name: str, img_tensor: Any) -> None:
        self._store.put_image(self._scope + img_name, img_tensor)

    def put_histogram(self, hist_name: str, hist_tensor: Any, bins: int = 1000) -> None:
        self._store.put_histogram(self._scope + hist_name, hist_tensor)

    def history(self, name: str) -> History:
        return self._store.history(name)

    def histories(self) -> dict[str, History]:
        return {name: self._store.history(name) for name in self._put_at}

    def latest(self) -> dict[str, tuple[float, int]]:
        """name -> (the last value, its iteration)."""
        return {name: (self.history(name).latest(), at) for name, at in self._put_at.items()}

    def latest_with_smoothing_hint(self, window_size: int = 20) -> dict[str, tuple[float, int]]:
        """The same, with the median of the last values for what was put to be smoothed."""
        return {
            name: (self.history(name).median(window_size), at)
            if self._hints[name]
            else (self.history(name).latest(), at)
            for name, at in self._put_at.items()
        }

    @contextmanager
    def name_scope(self, name: str) -> Iterator[None]:
        """Names that are put meanwhile begin with `name/`."""
        before, self._scope = self._scope, name.rstrip("/") + "/"
        try:
            yield
        finally:
            self._scope = before

    def to_be_written(self) -> dict[str, float]:
        """What no store of the run writes."""
        if not isinstance(self._store, Metrics):
            return {}
        return {name: value for name, (value, _) in self.latest().items()}


class Metrics:
    """Stands in for the store of a run where there is none: it keeps numbers, and no more."""

    def __init__(self) -> None:
        self._values: dict[str, Values] = {}

    def put_scalar(self, name: str, value: float) -> None:
        self._values.setdefault(name, Values()).append(value)

    def put_image(self, name: str, array: Any) -> None:
        """There is nobody to show it."""

    def put_histogram(self, name: str, values: Any) -> None:
        """There is nobody to show it."""

    def history(self, name: str) -> History:
        return self._values[name]


class Values(list[float]):
    def latest(self) -> float:
        return self[-1]

    def median(self, n: int) -> float:
        return statistics.median(self[-n:])

    def avg(self, n: int) -> float:
        return statistics.fmean(self[-n:])

    def global_avg(self) -> float:
        return statistics.fmean(self)
