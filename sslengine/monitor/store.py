"""`task.storage`, the metrics of a run: those that hooks, losses and models put, and the losses.

    task.storage.put_scalar("temperature", tau)             tau may be a tensor on the device
    task.storage.put_scalar("queue/age", age, reduce="max")
    current().put_scalar("gate", gate)                      in a model, which knows no task

A tensor stays on its device, so that no step waits for it. `read`, at LOG_FREQUENCY,
brings all that was put since the last time to the host and into the histories, and the losses
too, all in one copy. Any rank may put; rank 0's metrics are written. With `reduce` a metric is
that of all ranks, which must then have put it equally often: one all-reduce for all names and
the losses. `read_later` does the same without waiting for the device: the values of a GPU come
into the histories at the next call of `settle`, `read` or `read_later`.

Train and test phases have separate histories; those of a test phase start again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from sslengine.distributed.ranks import is_primary, world_size
from sslengine.errors import TrainingError, nearest
from sslengine.monitor.host import HostCopy, in_order
from sslengine.monitor.loss_ledger import MAIN, LossLedger, OpenLoss
from sslengine.monitor.over_ranks import REDUCTIONS, Exchange, OfRank
from sslengine.monitor.pictures import OpenHistogram, OpenPictures, count, picture
from sslengine.monitor.series import Series

WINDOW = 20
# Names of the metrics that the engine itself writes.
_TAKEN = re.compile(
    r"loss(\..*)?|loss_mean|lr|images_per_s|data_seconds|grad_norm|kind|split|iteration|epoch"
)
_NAME = re.compile(r"[\w.\- ]+(/[\w.\- ]+)*")


class Open:
    """What was put under a name since metrics were last read."""

    __slots__ = ("keep", "reduce", "values", "window")

    def __init__(self, reduce: str | None) -> None:
        self.reduce, self.window, self.keep = reduce, WINDOW, True
        self.values: list[Any] = []


class MetricStore:
    def __init__(
        self, active: bool = True, check_finite: bool = True, replayable: bool = True
    ) -> None:
        """An inactive one takes everything and keeps the losses alone.

        check_finite, replayable: of the losses.
        """
        self.active = active
        feed = self._feed if active else None
        self.losses = LossLedger(check_finite, self._flush_losses, feed, replayable)
        self._alone = world_size() == 1
        self.split = "train"
        self._series: dict[str, dict[str, Series]] = {"train": {}, "test": {}}
        self._open: dict[str, Open] = {}
        self._later: tuple[_Read, Callable[[], None]] | None = None
        self._images: dict[str, Tensor] = {}
        self._histograms: dict[str, OpenHistogram] = {}
        self._fresh: list[str] = []  # names put since they were last written
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
        """Waits for nothing; a tensor is copied on its device.

        window: written is the median of so many last values; 1: the last one.
        reduce: mean, max or sum over ranks; None: written is rank 0's.
        keep: False leaves the history out of checkpoints (times, which no run has twice).
        """
        _check_name(name)
        self.put_own(name, value, window, reduce, keep)

    def put_own(
        self, name: str, value: Any, window: int = 1, reduce: str | None = None, keep: bool = True
    ) -> None:
        """For metrics of the engine, whose names users cannot take."""
        if not self.active:
            return
        if reduce not in REDUCTIONS:
            raise TrainingError(
                f"put_scalar({name!r}): reduce must be one of mean, max, sum or None, got "
                f"{reduce!r}. {nearest(str(reduce), [r for r in REDUCTIONS if r])}".rstrip()
            )
        if window < 1:
            raise TrainingError(f"put_scalar({name!r}): window must be 1 or more, got {window!r}.")
        opened = self._open.get(name)
        if opened is None:
            opened = self._open[name] = Open(reduce)
        elif opened.reduce != reduce:
            raise TrainingError(
                f"put_scalar({name!r}): put with reduce={opened.reduce!r} and with "
                f"reduce={reduce!r}. Use one of them, or two names."
            )
        opened.window, opened.keep = window, keep
        opened.values.append(_scalar(name, value))

    def put_image(self, name: str, array: Any) -> None:
        """The newest of each name is written, by writers that take images. Rank 0's alone.

        8 bit integers, or floats from 0 to 1; (height, width), or with 1 or 3 colours first or
        last.
        """
        _check_name(name)
        image = picture(name, array)
        if self.active and self._writes:
            self._images[name] = image

    def put_histogram(self, name: str, tensor: Tensor, bins: int = 64) -> None:
        """The newest of each name is written. Counted at once, on the tensor's device."""
        _check_name(name)
        if self.active and self._writes:
            counted = count(name, tensor, bins)
            if counted is not None:
                self._histograms[name] = counted

    def _feed(self, losses: Mapping[str, list[float]]) -> None:
        """Losses that were read; they are written by another way."""
        for name, values in losses.items():
            self._history(name if name == MAIN else f"{MAIN}.{name}").extend(values)

    # ---- reading

    def read(self) -> None:
        """Bring all that is open into the histories. Collective; the host waits for the device.

        For all names and the losses it takes one all-reduce and one copy.
        """
        self.settle()
        self._note(self._take_open(self.losses.take_open()))

    def read_later(self, then: Callable[[], None]) -> None:
        """Begin to read what is open now; `then` is called when it is in the histories.

        Collective. On a CPU that is at once; from a GPU the copy has time until `settle`.
        """
        self.settle()
        self._later = self._take_open(self.losses.take_open()), then
        if not self._later[0].copy.from_device:
            self.settle()

    def settle(self, wait: bool = True) -> None:
        """Complete what `read_later` has begun: on all ranks at the same step.

        wait: for the device. Otherwise a copy that is not complete is left.
        """
        if self._later is None or not (wait or self._later[0].copy.is_complete()):
            return
        (begun, then), self._later = self._later, None
        self._note(begun)
        then()

    def _flush_losses(self) -> None:
        self.settle()
        if self.losses.is_open:
            self.read()

    def _take_open(self, losses: Sequence[OpenLoss] = ()) -> _Read:
        opened, self._open = self._open, {}
        return _Read(losses, opened, self._alone)

    def _note(self, read: _Read) -> None:
        of_losses, found = read.values()
        for name, values in found.items():
            opened, series = read.opened[name], self._history(name)
            series.window, series.keep = opened.window, opened.keep
            series.extend(values)
        self._fresh = list(dict.fromkeys((*self._fresh, *found)))
        self.losses.note(read.losses, of_losses)

    def _history(self, name: str) -> Series:
        known = self._series[self.split]
        if name not in known:
            known[name] = Series(WINDOW)
        return known[name]

    def history(self, name: str) -> Series:
        """All that was read of a metric in this kind of phase."""
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
        """Medians of the last `window` values; None: of each metric's own window.

        A metric that was put with window=1 is not smoothed in either case.
        """
        return {
            name: each.median(1 if each.window == 1 else window)
            for name, each in self._series[self.split].items()
            if each
        }

    def take_scalars(self) -> dict[str, float]:
        """What is to be written: metrics read since the last time; means in a test phase."""
        names, self._fresh = self._fresh, []
        series = self._series[self.split]
        if self.split == "test":
            return {name: series[name].global_average() for name in names}
        return {name: series[name].median() for name in names}

    def take_at_end(self) -> dict[str, float]:
        """The last of each name put since the last record; no history has it. Collective."""
        return {name: values[-1] for name, values in self._take_open().values()[1].items()}

    def take_without_waiting(self) -> dict[str, float]:
        """As take_at_end, of what this rank alone has on the host: for a run that has failed."""
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
        """The newest image and histogram of each name, still on their devices."""
        taken = OpenPictures(self._images, self._histograms)
        self._images, self._histograms = {}, {}
        return taken

    # ---- the run around it

    def start_phase(self, split: str, begins: bool) -> None:
        """begins: it does not resume. What was put before it is of its record."""
        if begins:
            self.losses.start_phase()
        self.split = split
        if begins and split == "test":
            self._series["test"] = {}
            self._fresh = []

    def state_dict(self) -> dict[str, Any]:
        """Collective. Images and histograms that wait to be written are not in it."""
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
        self._open, self._images, self._histograms, self._later = {}, {}, {}, None
        self.split = str(state["split"])
        self._series = {
            split: {name: Series.from_state(each) for name, each in series.items()}
            for split, series in state["series"].items()
        }
        self._fresh = [name for name in state["fresh"] if name in self._series[self.split]]


class _Read:
    """What was open when a read began, and its way to the host."""

    def __init__(self, losses: Sequence[OpenLoss], opened: dict[str, Open], alone: bool) -> None:
        self.losses, self.opened = losses, opened
        self._own = [name for name, each in opened.items() if alone or each.reduce is None]
        self._exchange = exchange = None if alone else Exchange(_of_all_ranks(losses, opened))
        weighed = (v.values if v.share == 1.0 else v.values * v.share for v in losses)
        cells = list(weighed) if exchange is None else [exchange.sent]
        self._others = len(cells)
        self.copy = HostCopy([*cells, *(v for name in self._own for v in opened[name].values)])

    def values(self) -> tuple[list[list[float]], dict[str, list[float]]]:
        """Of the losses, step by step, and of what was put, by its name."""
        read = self.copy.values()
        flat = (cell[0] for cell in read[self._others :])
        found = {name: [next(flat) for _ in self.opened[name].values] for name in self._own}
        if self._exchange is None:
            return read[: self._others], found
        found |= self._exchange.values(read[0])
        row = iter(found.pop(MAIN, ()))
        losses = [[next(row) for _ in each.names] for each in self.losses]
        return losses, {name: found[name] for name in self.opened}


def _of_all_ranks(losses: Sequence[OpenLoss], opened: Mapping[str, Open]) -> dict[str, OfRank]:
    """What ranks send: of losses the sum, for each is multiplied by its rank's share."""
    sent = {
        name: OfRank(each.reduce, each.values)
        for name, each in opened.items()
        if each.reduce is not None
    }
    if losses:
        row = in_order([each.values for each in losses], losses[0].values.device)
        shares = [each.share for each in losses for _ in each.names]
        alike = len(set(shares)) == 1
        weights = shares[0] if alike else in_order(shares, row.device)
        sent[MAIN] = OfRank("sum", [row * weights], tuple(each.names for each in losses))
    return sent


def _scalar(name: str, value: Any) -> Tensor | float:
    if isinstance(value, Tensor) and value.numel() == 1 and not value.is_complex():
        return value.detach().reshape(()).clone()  # its base may change
    try:
        return float(value) if not isinstance(value, Tensor) else _refused(name, value)
    except (TypeError, ValueError):
        return _refused(name, value)


def _refused(name: str, value: Any) -> float:
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
