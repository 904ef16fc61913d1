"""`task.storage`, the metrics of a run: the losses, and what hooks, losses and models put.

    task.storage.put_scalar("temperature", tau)             tau may be a tensor on the device
    task.storage.put_scalar("queue/age", age, reduce="max")
    current().put_scalar("gate", gate)                      in a model, which knows no task

A tensor stays on its device, so that no step waits for it. `read`, at LOG_FREQUENCY, brings all
that was put since the last time to the host and into the histories, with the losses: it waits for
the device once. Any rank may put; rank 0's metrics are written. With `reduce` a metric is
that of all ranks, which must then have put it equally often.

Train and test phases have separate histories; those of a test phase start again.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce as fold
from itertools import islice
from operator import add
from statistics import median
from typing import Any

from torch import Tensor

from sslengine.distributed.ranks import is_primary
from sslengine.errors import TrainingError, nearest
from sslengine.monitor.losses import MAIN, LossLedger
from sslengine.monitor.over_ranks import REDUCTIONS, Column, Number, read_columns
from sslengine.monitor.pictures import OpenHistogram, OpenPictures, count, picture

WINDOW = 20
KEPT = 1000  # values of a history, unless the window is larger
# Names of the metrics that the engine itself writes.
_TAKEN = re.compile(
    r"loss(\..*)?|loss_mean|lr|images_per_s|data_seconds|grad_norm|kind|split|iteration|epoch"
)
_NAME = re.compile(r"[\w.\- ]+(/[\w.\- ]+)*")


class Series:
    """The history of one metric: its last values, and the mean of all of them."""

    def __init__(self, window: int = WINDOW, keep: bool = True) -> None:
        """window: how many values are smoothed over; keep: is it in checkpoints?"""
        self.window, self.keep = window, keep
        self._values: deque[float] = deque(maxlen=max(KEPT, window))
        self._sum = 0.0
        self._count = 0

    def __len__(self) -> int:
        """Count all values there were, those that are no longer kept included."""
        return self._count

    def extend(self, values: Sequence[float]) -> None:
        if self.window > (self._values.maxlen or 0):
            self._values = deque(self._values, maxlen=self.window)
        self._values.extend(values)
        self._sum = fold(add, values, self._sum)
        self._count += len(values)

    def values(self, window: int | None = None) -> list[float]:
        """Return the last ones, oldest first; None: all that are kept."""
        return list(islice(reversed(self._values), window))[::-1]

    def latest(self) -> float:
        return self._values[-1]

    def median(self, window: int | None = None) -> float:
        """Return NaN if one of the values is."""
        values = self.values(self.window if window is None else window)
        return math.nan if any(map(math.isnan, values)) else float(median(values))

    def average(self, window: int | None = None) -> float:
        values = self.values(self.window if window is None else window)
        return sum(values) / len(values)

    def global_average(self) -> float:
        """Return the mean of all values since the start of the run."""
        return self._sum / self._count

    def state_dict(self) -> dict[str, Any]:
        return {
            "window": self.window,
            "values": list(self._values),
            "sum": self._sum,
            "count": self._count,
        }

    @classmethod
    def restore(cls, state: dict[str, Any]) -> Series:
        series = cls(int(state["window"]))
        series._values.extend(state["values"])
        series._sum, series._count = float(state["sum"]), int(state["count"])
        return series


@dataclass
class Open:
    """What was put under a name since metrics were last read."""

    reduce: str | None
    window: int = WINDOW
    keep: bool = True
    values: list[Number] = field(default_factory=list)


class MetricStore:
    def __init__(
        self,
        active: bool = True,
        check_finite: bool = True,
        replay: str = "",
        name: Callable[[int], str] = str,
    ) -> None:
        """Make an empty store. An inactive one takes everything and keeps the losses alone.

        check_finite, replay, name: of the losses.
        """
        self.active = active
        self.losses = LossLedger(self.read, check_finite, replay, name)
        self.split = "train"
        self._series: dict[str, dict[str, Series]] = {"train": {}, "test": {}}
        self._open: dict[str, Open] = {}
        self._images: dict[str, Tensor] = {}
        self._histograms: dict[str, OpenHistogram] = {}
        self._fresh: list[str] = []  # names read since they were last written
        self._writes = is_primary()

    # ---- putting

    def put_scalar(
        self,
        name: str,
        value: float | Tensor,
        window: int = WINDOW,
        reduce: str | None = None,
        keep: bool = True,
    ) -> None:
        """Put a number; a tensor is copied on its device, and nothing waits for it.

        window: written is the median of so many last values; 1: the last one.
        reduce: mean, max or sum over ranks; None: written is rank 0's.
        keep: False leaves the history out of checkpoints (times, which no run has twice).
        """
        _check_name(name)
        self.put_own(name, value, window, reduce, keep)

    def put_own(
        self, name: str, value: Any, window: int = 1, reduce: str | None = None, keep: bool = True
    ) -> None:
        """Put a metric of the engine, whose names users cannot take."""
        if not self.active:
            return
        opened = self._open.get(name) or Open(reduce)
        if reduce not in REDUCTIONS:
            raise TrainingError(
                f"put_scalar({name!r}): reduce must be one of mean, max, sum or None, got "
                f"{reduce!r}. {nearest(str(reduce), [r for r in REDUCTIONS if r])}".rstrip()
            )
        if window < 1:
            raise TrainingError(f"put_scalar({name!r}): window must be 1 or more, got {window!r}.")
        if opened.reduce != reduce:
            raise TrainingError(
                f"put_scalar({name!r}): put with reduce={opened.reduce!r} and with "
                f"reduce={reduce!r}. Use one of them, or two names."
            )
        opened.values.append(_scalar(name, value))
        opened.window, opened.keep = window, keep
        self._open[name] = opened

    def put_image(self, name: str, array: Any) -> None:
        """Put an image: the newest of each name is written, by writers that take images.

        8 bit integers, or floats from 0 to 1; (height, width), or with 1 or 3 colours first or
        last. Rank 0's alone are kept.
        """
        _check_name(name)
        image = picture(name, array)
        if self.active and self._writes:
            self._images[name] = image

    def put_histogram(self, name: str, tensor: Tensor, bins: int = 64) -> None:
        """Count the values at once, on their device; the newest of each name is written."""
        _check_name(name)
        if self.active and self._writes:
            counted = count(name, tensor, bins)
            if counted is not None:
                self._histograms[name] = counted

    # ---- reading

    def read(self) -> None:
        """Bring all that is open into the histories. Collective; the host waits for the device."""
        (opened, self._open), steps = (self._open, {}), self.losses.take_open()
        found = read_columns(_columns(opened) | self.losses.column(steps))
        for name, each in opened.items():
            series = self._history(name)
            series.window, series.keep = each.window, each.keep
            series.extend(found[name])
        self._fresh = list(dict.fromkeys((*self._fresh, *opened)))
        if steps:
            self.losses.note(steps, found[MAIN], self._keep_losses)

    def _keep_losses(self, losses: Mapping[str, list[float]]) -> None:
        """Add losses to the histories; they are written from the ledger."""
        for name, values in losses.items() if self.active else ():
            self._history(name if name == MAIN else f"{MAIN}.{name}").extend(values)

    def _history(self, name: str) -> Series:
        return self._series[self.split].setdefault(name, Series(WINDOW))

    def history(self, name: str) -> Series:
        """Return all that was read of a metric in this kind of phase."""
        known = self._series[self.split]
        if not known.get(name):
            raise TrainingError(
                f"no metric {name!r} has been read in a {self.split} phase yet; metrics are read "
                f"at LOG_FREQUENCY. {nearest(name, known)}".rstrip()
            )
        return known[name]

    def latest(self) -> dict[str, float]:
        return {name: each.latest() for name, each in self._series[self.split].items() if each}

    def latest_with_smoothing(self, window: int | None = None) -> dict[str, float]:
        """Return medians of the last `window` values; None: of each metric's own window.

        A metric that was put with window=1 is not smoothed in either case.
        """
        return {
            name: each.median(1 if each.window == 1 else window)
            for name, each in self._series[self.split].items()
            if each
        }

    def take_scalars(self) -> dict[str, float]:
        """Return what is to be written: metrics read since the last time; means in a test phase."""
        names, self._fresh = self._fresh, []
        series = self._series[self.split]
        if self.split == "test":
            return {name: series[name].global_average() for name in names}
        return {name: series[name].median() for name in names}

    def take_at_end(self) -> dict[str, float]:
        """Return the last of each name put since the last record; no history has it. Collective."""
        opened, self._open = self._open, {}
        found = read_columns(_columns(opened))
        return {name: found[name][-1] for name in opened}

    def take_without_waiting(self) -> dict[str, float]:
        """Return the same, of what this rank alone has on the host: for a run that has failed."""
        (names, self._fresh), (opened, self._open) = (self._fresh, []), (self._open, {})
        known = self._series[self.split]
        own: dict[str, Any] = {name: known[name].latest() for name in names}
        own |= {name: each.values[-1] for name, each in opened.items() if each.reduce is None}
        return {
            name: float(value)
            for name, value in own.items()
            if not (isinstance(value, Tensor) and value.device.type != "cpu")
        }

    def take_pictures(self) -> OpenPictures:
        """Return the newest image and histogram of each name, still on their devices."""
        taken = OpenPictures(self._images, self._histograms)
        self._images, self._histograms = {}, {}
        return taken

    # ---- the run around it

    def start_phase(self, split: str, begins: bool) -> None:
        """Begin a phase's metrics, or continue them. What was put before is of its record."""
        if begins:
            self.losses.start_phase()
        self.split = split
        if begins and split == "test":
            self._series["test"] = {}
            self._fresh = []

    def state_dict(self) -> dict[str, Any]:
        """Return the histories. Collective. Images and histograms that wait are not in it."""
        self.read()
        return {
            "split": self.split,
            "fresh": [name for name in self._fresh if self._series[self.split][name].keep],
            "series": {
                split: {name: each.state_dict() for name, each in series.items() if each.keep}
                for split, series in self._series.items()
            },
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._open, self._images, self._histograms = {}, {}, {}
        self.split = str(state["split"])
        self._series = {
            split: {name: Series.restore(each) for name, each in series.items()}
            for split, series in state["series"].items()
        }
        self._fresh = [name for name in state["fresh"] if name in self._series[self.split]]


def _columns(opened: Mapping[str, Open]) -> dict[str, Column]:
    return {name: Column(each.values, each.reduce) for name, each in opened.items()}


def _scalar(name: str, value: Any) -> Number:
    if isinstance(value, Tensor) and value.numel() == 1 and not value.is_complex():
        return value.detach().reshape(()).clone()  # its base may change
    try:
        return float(value) if not isinstance(value, Tensor) else _refuse(name, value)
    except (TypeError, ValueError):
        return _refuse(name, value)


def _refuse(name: str, value: Any) -> float:
    kind = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
    raise TrainingError(f"put_scalar({name!r}): expected one number, got {kind}.")


def _check_name(name: str) -> None:
    if _TAKEN.fullmatch(name):
        raise TrainingError(f"the engine itself logs {name!r}: put your metric under another name.")
    if not _NAME.fullmatch(name) or ".." in name:
        raise TrainingError(
            f"{name!r} cannot be the name of a metric: use letters, digits, '_', '-', '.' and "
            f"spaces, with '/' between parts."
        )


_NOWHERE = MetricStore(active=False)
_current = _NOWHERE


def current() -> MetricStore:
    """The store of the current run; outside of a run, a store that keeps nothing."""
    return _current


def make_current(store: MetricStore | None) -> None:
    """The task's business, at the start and at the end of a run."""
    global _current
    _current = _NOWHERE if store is None else store
