"""`task.storage`, the metrics of a run: the losses, and what hooks, losses and models put.

    task.storage.put_scalar("temperature", tau)             tau may be a tensor on the device
    task.storage.put_scalar("queue/age", age, reduce="max")
    current().put_scalar("gate", gate)                      in a model, which knows no task

A tensor stays on its device, so that no step waits for it. `read`, at LOG_FREQUENCY, at the end of
a phase and before a checkpoint, brings all that is open to the host and into the histories: it
waits for the device once. It finds the first step whose loss is not finite, so that no such step is
logged, averaged or saved. Any rank may put; rank 0's metrics are written. With `reduce` a metric is
that of all ranks, which must then have put it equally often.

Train and test phases have separate histories; those of a test phase start again.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce as fold
from itertools import islice
from operator import add
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sslengine.distributed.collectives import gather_equal
from sslengine.distributed.process_group import backend_device
from sslengine.distributed.ranks import is_primary, world_size
from sslengine.errors import NonFiniteLossError, TrainingError, nearest
from sslengine.precision import widest

Number = Tensor | float
Image = NDArray[np.uint8]  # height, width, and 3 for colours

MAIN = "loss"
WINDOW = 20
KEPT = 1000  # values of a history, unless the window is larger
# Names of the metrics that the engine itself writes.
_TAKEN = re.compile(
    r"loss(\..*)?|loss_mean|lr|images_per_s|data_seconds|grad_norm|kind|split|iteration|epoch"
)
_NAME = re.compile(r"[\w.\- ]+(/[\w.\- ]+)*")
_SIZE = 1024  # numbers that a rank sends at once
_HASHES = ""  # no metric has this name
_NAMED = 4  # images of a loss that is not finite


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
        kept = list(self._values)
        return kept if window is None else kept[-window:]

    def latest(self) -> float:
        return self._values[-1]

    def median(self, window: int | None = None) -> float:
        """Return NaN if one of the values is."""
        values = self.values(window or self.window)
        return math.nan if any(map(math.isnan, values)) else float(median(values))

    def average(self, window: int | None = None) -> float:
        values = self.values(window or self.window)
        return sum(values) / len(values)

    def global_average(self) -> float:
        """Return the mean of all values since the start of the run."""
        return self._sum / self._count

    def state_dict(self) -> dict[str, Any]:
        kept = list(self._values)
        return {"window": self.window, "values": kept, "sum": self._sum, "count": self._count}

    @classmethod
    def restore(cls, state: Mapping[str, Any]) -> Series:
        series = cls(int(state["window"]))
        series._values.extend(state["values"])
        series._sum, series._count = float(state["sum"]), int(state["count"])
        return series


class LossEntry(NamedTuple):
    iteration: int  # train steps made before this one
    parts: dict[str, float]  # means over all ranks' images; the loss itself is parts["loss"]
    batch_size: int  # images, over all ranks


class OpenLoss(NamedTuple):
    """A step's loss that is not read yet."""

    iteration: int
    names: tuple[str, ...]
    values: Tensor  # one for each name, of this rank
    batch_size: int
    share: float  # of the images, on this rank
    samples: Tensor | None


class MetricStore:
    def __init__(
        self,
        active: bool = True,
        check_finite: bool = True,
        replay: str = "",
        name: Callable[[int], str] = str,
    ) -> None:
        """Make an empty store. An inactive one takes everything and keeps the losses alone.

        replay: the command that repeats the run's last steps; empty if none can.
        name: names the sample of an index, for the error of a loss that is not finite.
        """
        self.active, self.check_finite = active, check_finite
        self._replay, self._name = replay, name
        self.split = "train"
        self._series: dict[str, dict[str, Series]] = {"train": {}, "test": {}}
        self._open: dict[str, Column] = {}
        self._images: dict[str, Tensor] = {}
        self._histograms: dict[str, Tensor] = {}
        self._fresh: list[str] = []  # names read since they were last written
        self._keeps_pictures = active and is_primary()
        self._open_losses: list[OpenLoss] = []
        self._unread: list[LossEntry] = []
        # Losses times batch size of the phase so far; VISSL's `task.losses`.
        self.phase_losses: list[float] = []
        self._phase_samples = 0
        self._history: list[LossEntry] | None = None

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
        self.put_own(_checked(name), value, window, reduce, keep)

    def put_own(
        self, name: str, value: Any, window: int = 1, reduce: str | None = None, keep: bool = True
    ) -> None:
        """Put a metric of the engine, whose names users cannot take."""
        if not self.active:
            return
        opened = self._open.get(name) or Column(reduce)
        if reduce not in (None, "mean", "max", "sum") or opened.reduce != reduce:
            raise TrainingError(f"put_scalar({name!r}): {reduce=} is unknown, or another before.")
        if isinstance(value, Tensor):  # copied, since its base may change; integers in full
            single = value.detach().reshape(())
            kept = single.dtype if single.is_floating_point() else widest(single.device)
            opened.values.append(single.to(kept, copy=True))
        else:
            opened.values.append(float(value))
        opened.window, opened.keep = window, keep
        self._open[name] = opened

    def put_image(self, name: str, array: Any) -> None:
        """Put an image: the newest of each name is written, by writers that take images.

        8 bit integers, or floats from 0 to 1; (height, width), or with 1 or 3 colours first or
        last. Rank 0's alone are kept.
        """
        if _checked(name) and self._keeps_pictures:
            self._images[name] = torch.as_tensor(array).detach().clone()

    def put_histogram(self, name: str, tensor: Tensor, bins: int = 64) -> None:
        """Count the values at once, on their device; the newest of each name is written."""
        if _checked(name) and self._keeps_pictures and tensor.numel():
            self._histograms[name] = count(tensor, bins)

    def record(
        self,
        loss: Tensor | Mapping[str, Tensor],
        iteration: int,
        batch_size: int,
        share: float = 1.0,
        samples: Tensor | None = None,
    ) -> Tensor:
        """Note a step's loss with its parts. Return this rank's loss, without graph.

        batch_size: images of the step over all ranks; share: of them, on this rank.
        samples: this rank's sample indices, on the host, for the error message.
        """
        parts = {MAIN: loss} if isinstance(loss, Tensor) else loss
        own = parts[MAIN].detach()
        values = own
        if not isinstance(loss, Tensor):
            values = torch.stack([part.detach().float() for part in loss.values()])
        opened = OpenLoss(iteration, tuple(parts), values, batch_size, share, samples)
        self._open_losses.append(opened)
        return own

    # ---- reading

    def read(self) -> None:
        """Bring all that is open into the histories. Collective; the host waits for the device."""
        (opened, self._open), (steps, self._open_losses) = (self._open, {}), (self._open_losses, [])
        found = read_columns({**opened, MAIN: _weigh(steps)} if steps else opened)
        for name, each in opened.items():
            series = self._find_series(name)
            series.window, series.keep = each.window, each.keep
            series.extend(found[name])
        self._fresh = list(dict.fromkeys((*self._fresh, *opened)))
        numbers = iter(found.get(MAIN, ()))
        for step in steps:
            parts = dict(zip(step.names, islice(numbers, len(step.names)), strict=True))
            self._note(LossEntry(step.iteration, parts, step.batch_size), step.samples)

    def _note(self, entry: LossEntry, samples: Tensor | None) -> None:
        """Take a step's losses, as means over ranks; raise if one of them is not finite."""
        if self.check_finite and not all(map(math.isfinite, entry.parts.values())):
            raise self._not_finite(entry, samples)
        self._unread.append(entry)
        if self._history is not None:
            self._history.append(entry)
        self.phase_losses.append(entry.parts[MAIN] * entry.batch_size)
        self._phase_samples += entry.batch_size
        for name, value in entry.parts.items() if self.active else ():
            self._find_series(name if name == MAIN else f"{MAIN}.{name}").extend([value])

    def _not_finite(self, entry: LossEntry, samples: Tensor | None) -> NonFiniteLossError:
        parts = ", ".join(f"{name} {value}" for name, value in entry.parts.items())
        lines = [f"the loss of iteration {entry.iteration + 1} is not finite: {parts}."]
        if samples is not None:
            lines.append(f"Its images, of this rank: {name_few(samples, self._name)}.")
        lines.append("No checkpoint was written since. config.HOOKS.CHECK_NAN=false continues.")
        if self._replay:
            lines.append(f"Repeat the last steps, to find the module: {self._replay}")
        return NonFiniteLossError("\n  ".join(lines), entry.parts, entry.iteration + 1)

    def flush(self) -> None:
        """Read the losses that are still on the device. Collective where there are some."""
        if self._open_losses:
            self.read()

    def phase_mean(self) -> float | None:
        """Return the mean loss per sample of this phase so far. Collective."""
        self.flush()
        return sum(self.phase_losses) / self._phase_samples if self._phase_samples else None

    def _find_series(self, name: str) -> Series:
        return self._series[self.split].setdefault(name, Series())

    def history(self, name: str) -> Series:
        """Return all that was read of a metric in this kind of phase."""
        known = self._series[self.split]
        if not known.get(name):
            raise TrainingError(f"no metric {name!r} has been read yet. {nearest(name, known)}")
        return known[name]

    def latest(self) -> dict[str, float]:
        return {name: each.latest() for name, each in self._series[self.split].items() if each}

    # ---- taking what is to be written

    def take_losses(self) -> list[LossEntry]:
        """Return the steps since the last call. Collective."""
        self.flush()
        entries, self._unread = self._unread, []
        return entries

    def take_history(self) -> list[LossEntry]:
        """Return the steps since the last call, taken or not; the first call begins to keep."""
        entries, self._history = self._history or [], []
        return entries

    def take_scalars(self) -> dict[str, float]:
        """Return metrics read since the last time; in a test phase their means."""
        names, self._fresh = self._fresh, []
        series = self._series[self.split]
        if self.split == "test":
            return {name: series[name].global_average() for name in names}
        return {name: series[name].median() for name in names}

    def take_last(self, failed: bool) -> dict[str, float]:
        """Return the last number of each name put since the last record, at the end of a run.

        Collective, but not in a run that has failed: then it is what this rank has on the host.
        """
        if not failed:
            self.read()
        taken: dict[str, Number] = {name: self.history(name).latest() for name in self._fresh}
        taken |= {name: each.values[-1] for name, each in self._open.items() if not each.reduce}
        self._open, self._fresh = {}, []
        on_host = {k: v for k, v in taken.items() if not isinstance(v, Tensor) or v.is_cpu}
        return {name: float(value) for name, value in on_host.items()}

    def take_pictures(self) -> tuple[dict[str, Image], dict[str, Histogram]]:
        """Return the newest image and histogram of each name. Waits for the device."""
        images = {name: make_image(each) for name, each in self._images.items()}
        histograms = {name: read_histogram(each) for name, each in self._histograms.items()}
        self._images, self._histograms = {}, {}
        return images, {name: each for name, each in histograms.items() if any(each.counts)}

    def start_phase(self, split: str, begins: bool) -> None:
        """Begin a phase's metrics, or continue them. What was put before is of its record."""
        if begins:
            self.flush()
            self.phase_losses, self._phase_samples = [], 0
        self.split = split
        if begins and split == "test":
            self._series["test"] = {}
            self._fresh = []

    # ---- checkpoints

    def state_dict(self) -> dict[str, Any]:
        """Return losses and histories. Collective. Pictures that wait are not in it."""
        self.read()
        losses = {
            "phase_losses": list(self.phase_losses),
            "phase_samples": self._phase_samples,
            "unread": [tuple(entry) for entry in self._unread],
        }
        histories = {
            "split": self.split,
            "fresh": [name for name in self._fresh if self._series[self.split][name].keep],
            "series": {
                split: {name: each.state_dict() for name, each in series.items() if each.keep}
                for split, series in self._series.items()
            },
        }
        return {"losses": losses, "figures": histories}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        losses, histories = state["losses"], state["figures"]
        self._open, self._images, self._histograms, self._open_losses = {}, {}, {}, []
        self._unread = [LossEntry(*entry) for entry in losses["unread"]]
        self.phase_losses = list(losses["phase_losses"])
        self._phase_samples = int(losses["phase_samples"])
        self.split = str(histories["split"])
        self._series = {
            split: {name: Series.restore(each) for name, each in series.items()}
            for split, series in histories["series"].items()
        }
        self._fresh = [name for name in histories["fresh"] if name in self._series[self.split]]


# ---- from the devices of all ranks to the host


@dataclass
class Column:
    """All that was put under one name since metrics were last read."""

    reduce: str | None = None  # over ranks; None: each rank has its own
    values: list[Number] = field(default_factory=list)
    window: int = WINDOW
    keep: bool = True
    parts: Sequence[Sequence[str]] = ()  # of losses: the names of each step's


def read_columns(columns: Mapping[str, Column]) -> dict[str, list[float]]:
    """Return the numbers of each column on the host. Collective; waits for the device once.

    Each rank sends a row of one size: a hash of its names, and the numbers of those with `reduce`.
    Ranks must have put the same names equally often, or the hashes differ. Numbers that do not fit
    are sent after that is known, when all ranks have equally many.
    """
    rows = {name: join(each.values) for name, each in columns.items()}
    if (ranks := world_size()) == 1:
        return _copy_to_host(rows)
    shared = {name: rows.pop(name).to(backend_device()) for name in sorted(columns)
              if columns[name].reduce}  # fmt: skip
    put = [(name, columns[name].reduce, columns[name].parts, len(shared[name])) for name in shared]
    digest = hashlib.blake2b(repr(put).encode(), digest_size=6).digest()  # a double holds 48 bits
    own_hash = torch.tensor([int.from_bytes(digest, "big")], dtype=torch.float64)
    row = torch.cat([own_hash.to(backend_device()), *shared.values()])
    sent = row.new_zeros(_SIZE)
    sent[: len(row)] = row[:_SIZE]
    everyone = gather_equal(sent).view(ranks, _SIZE)
    rows[_HASHES] = everyone[:, 0]
    if len(row) > _SIZE:
        _expect_one(everyone[:, 0].tolist(), shared)
        everyone = torch.cat([everyone, gather_equal(row[_SIZE:]).view(ranks, -1)], dim=1)
    begin = 1
    for name, own in shared.items():
        numbers, begin = everyone[:, begin : begin + len(own)], begin + len(own)
        of_all = numbers.amax(0) if columns[name].reduce == "max" else numbers.sum(0)
        rows[name] = of_all / ranks if columns[name].reduce == "mean" else of_all
    found = _copy_to_host(rows)
    _expect_one(found.pop(_HASHES), shared)
    return found


def _expect_one(hashes: Sequence[float], shared: Mapping[str, Tensor]) -> None:
    if len({*hashes}) > 1:
        raise TrainingError(
            "ranks have put different metrics since they were last read: losses must have the same "
            "parts, and what has `reduce` must be put on every rank, equally often. This rank has "
            f"put {', '.join(map(repr, shared)) or 'none'}."
        )


def join(values: Sequence[Number]) -> Tensor:
    """Put numbers in one row of double precision, in order, on their device."""
    devices = (each.device for each in values if isinstance(each, Tensor) and not each.is_cpu)
    device = next(devices, torch.device("cpu"))
    wide = torch.empty(0, dtype=widest(device), device=device)
    rows = (each if isinstance(each, Tensor) else wide.new_tensor(each) for each in values)
    return torch.cat([each.to(device).reshape(-1) for each in rows]).to(wide)


def _weigh(steps: Sequence[OpenLoss]) -> Column:
    """Multiply each loss by its rank's share of the images: the sum over ranks is the mean."""
    row = join([each.values for each in steps])
    shares = [each.share for each in steps for _ in each.names]
    weights = shares[0] if len({*shares}) == 1 else row.new_tensor(shares)  # most are alike
    return Column("sum", [row * weights], parts=[each.names for each in steps])


def _copy_to_host(rows: Mapping[str, Tensor]) -> dict[str, list[float]]:
    read: dict[str, list[float]] = {}
    for device in {row.device for row in rows.values()}:
        there = {name: row for name, row in rows.items() if row.device == device}
        numbers = iter(torch.cat([*there.values()]).tolist())
        read |= {name: list(islice(numbers, len(row))) for name, row in there.items()}
    return read


def name_few(samples: Tensor, name: Callable[[int], str]) -> str:
    """Name the first samples, and say how many others there are."""
    indices = torch.unique(samples).tolist()
    more = f" and {len(indices) - _NAMED} more" if len(indices) > _NAMED else ""
    return ", ".join(map(name, indices[:_NAMED])) + more


def _checked(name: str) -> str:
    if _TAKEN.fullmatch(name) or not _NAME.fullmatch(name) or ".." in name:
        raise TrainingError(
            f"{name!r} cannot be the name of a metric: use letters, digits, ' _-.', '/' between "
            f"parts, and no name of the engine's, such as 'loss' or 'lr'."
        )
    return name


# ---- images and histograms, on the device until they are read


class Histogram(NamedTuple):
    """Equal bins from `low` to `high`; what is not finite is in none of them."""

    counts: list[int]
    low: float
    high: float
    sum: float
    sum_of_squares: float

    @property
    def edges(self) -> list[float]:
        """Return the borders of the bins, one more than there are bins."""
        return [float(edge) for edge in np.linspace(self.low, self.high, len(self.counts) + 1)]


def count(tensor: Tensor, bins: int) -> Tensor:
    """Count where the tensor is, without waiting, for `read_histogram`."""
    values = tensor.detach().flatten().float()
    finite = values.isfinite()
    low = torch.where(finite, values, torch.inf).amin()
    high = torch.where(finite, values, -torch.inf).amax()
    values = torch.where(finite, values, low)
    place = (values - low) / (high - low).clamp_min(torch.finfo(values.dtype).tiny)
    index = (place * bins).clamp(0, bins - 1).nan_to_num().long()
    counts = torch.zeros(bins, dtype=torch.long, device=values.device)
    counts.scatter_add_(0, index, finite.long())
    wide = widest(values.device)
    values = torch.where(finite, values, 0.0).to(wide)
    numbers = torch.stack([low.to(wide), high.to(wide), values.sum(), values.square().sum()])
    return torch.cat([numbers, counts.to(wide)])


def read_histogram(counted: Tensor) -> Histogram:
    """Bring what `count` returned to the host. Waits for the device."""
    low, high, total, squares, *counts = counted.tolist()
    return Histogram([*map(int, counts)], low, high, total, squares)


def make_image(given: Tensor) -> Image:
    """Make an image of 8 bits, colours last. Waits for the device."""
    if given.is_floating_point():
        given = given.float().nan_to_num().clamp(0, 1).mul(255).round().to(torch.uint8)
    if given.ndim == 3 and given.shape[0] in (1, 3):
        given = given.permute(1, 2, 0)
    if given.ndim == 3 and given.shape[-1] == 1:
        given = given.squeeze(-1)
    array: Image = given.cpu().contiguous().numpy()
    return array


_NOWHERE = MetricStore(active=False)
_current = _NOWHERE


def current() -> MetricStore:
    """Return the store of the current run; outside of a run, one that keeps nothing."""
    return _current


def make_current(store: MetricStore | None) -> None:
    """Set the store of the current run: the task's business, at a run's start and end."""
    global _current
    _current = _NOWHERE if store is None else store
