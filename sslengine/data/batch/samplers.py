"""Which samples make the batches of an epoch. A sampler has no state but its arguments.

So there is nothing to save, and a run continues in the middle of an epoch by asking for the
steps that are left, without walking through those that are done.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise, repeat
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from sslengine.data.manifest.classes import NO_CLASS, Column
from sslengine.data.options import SplitOptions
from sslengine.data.seeding import SampleKey, epoch_generator, generator
from sslengine.errors import DataError

Rows = Callable[[int], list[int]]


class Place(NamedTuple):
    """Where the samples of a rank are in the global batch, for draws over all of it."""

    # What draws for the global batch depend on: seed, epoch and step.
    stream: tuple[int, ...]
    # The place of this rank's first sample, and the number of all samples.
    first: int
    size: int

    @classmethod
    def find(cls, samples: Sequence[Any]) -> Place:
        """Return the place of samples; those that no loader read are a batch by themselves, with
        random draws."""
        place: Place | None = getattr(samples, "place", None)
        return place or cls((random.getrandbits(63),), 0, len(samples))


class Keys(list[SampleKey]):
    """The keys of a rank's batch."""

    place: Place | None = None


class BatchSampler(ABC):
    """The batches of one rank, for a window of steps of an epoch."""

    _rank = 0  # of those whose batches are as large

    def __init__(self, batch_sizes: list[int], global_batch_sizes: list[int]) -> None:
        # For each step of any epoch: this rank's, and those of all ranks together.
        self.batch_sizes = batch_sizes
        self.global_batch_sizes = global_batch_sizes
        self.set_window(0)

    def set_window(self, epoch: int, first_step: int = 0, last_step: int | None = None) -> None:
        """Iterate over these steps of this epoch next; `last_step` is not among them."""
        last_step = len(self.batch_sizes) if last_step is None else last_step
        assert 0 <= first_step <= last_step <= len(self.batch_sizes)
        self._steps = range(first_step, last_step)
        # A new list: a running iteration keeps its windows.
        self._windows = [(epoch, self._steps)]

    def then(self, epoch: int, first_step: int, last_step: int) -> None:
        """Continue the iteration over the window that was set with these steps."""
        self._windows.append((epoch, range(first_step, last_step)))

    def __len__(self) -> int:
        return len(self._steps)

    def __iter__(self) -> Iterator[list[SampleKey]]:
        # The windows are fixed here, not when the first batch is taken.
        return _Keys(self, self._windows)

    def keys(self, epoch: int, steps: range) -> Iterator[list[SampleKey]]:
        rows, of = self._rows_of(epoch), self._key_epoch(epoch)
        for step in steps:
            keys = Keys(zip(repeat(of), rows(step)))
            keys.place = Place((of, step), self._first(step), self.global_batch_sizes[step])
            yield keys

    def _first(self, step: int) -> int:
        """Return the place of this rank's first sample in the global batch."""
        return self._rank * self.batch_sizes[step]

    def _key_epoch(self, epoch: int) -> int:
        return epoch

    @abstractmethod
    def _rows_of(self, epoch: int) -> Rows:
        """Return a function from a step of the epoch to this rank's rows."""


class _Keys(Iterator[list[SampleKey]]):
    """Window after window. At the end of all it may be asked again: one may have come."""

    def __init__(self, sampler: BatchSampler, windows: Sequence[tuple[int, range]]) -> None:
        self._sampler, self._windows = sampler, windows
        self._now = sampler.keys(*windows[0])
        self._begun = 1

    def __next__(self) -> list[SampleKey]:
        for keys in self._now:
            return keys
        if self._begun == len(self._windows):
            raise StopIteration
        self._now = self._sampler.keys(*self._windows[self._begun])
        self._begun += 1
        return next(self)


class DistributedBatchSampler(BatchSampler):
    """For training: every epoch all samples in another random order.

    The order is one permutation, drawn from (seed, epoch) alone. Each step takes the next
    `batch_size * world_size` of it, and each rank its part of those: with the same global
    batch size, the global batches are the same for any number of ranks. The incomplete last
    one is dropped, or filled up from the beginning until the ranks can share it evenly.
    """

    def __init__(
        self,
        num_samples: int,
        batch_size: int,
        rank: int = 0,
        world_size: int = 1,
        *,
        seed: int,
        drop_last: bool,
        shuffle: bool = True,
        where: str = "config.DATA.TRAIN",
    ) -> None:
        """shuffle: False: in order, as a stream comes, or to look for mistakes."""
        self._num_samples = num_samples
        self._shuffle = shuffle
        self._global_batch = batch_size * world_size
        self._rank = rank
        self._seed = seed
        full, rest = divmod(num_samples, self._global_batch)
        last = [] if drop_last or not rest else [-(-rest // world_size)]
        if not full and not last:
            raise DataError(
                f"{where}: the dataset has {num_samples} samples, fewer than the global batch of "
                f"{self._global_batch} ({batch_size} on each of {world_size} processes), and "
                f"DROP_LAST drops what does not fill a batch. Set {where}.DROP_LAST=false, lower "
                f"{where}.BATCHSIZE_PER_REPLICA to {max(1, num_samples // world_size)}, or use "
                f"fewer processes "
                f"(config.DISTRIBUTED.NUM_PROC_PER_NODE)."
            )
        sizes = [batch_size] * full + last
        super().__init__(sizes, [size * world_size for size in sizes])

    def _rows_of(self, epoch: int) -> Rows:
        order = random_order(self._num_samples, self._seed, epoch) if self._shuffle else None

        def rows(step: int) -> list[int]:
            size = self.batch_sizes[step]
            start = step * self._global_batch + self._rank * size
            places = torch.arange(start, start + size) % self._num_samples
            return (places if order is None else order[places]).tolist()

        return rows


class StretchBatchSampler(BatchSampler):
    """These stretches of the dataset, each a batch. Random transforms draw the same every epoch."""

    def __init__(
        self, stretches: Sequence[range], global_batch_sizes: list[int] | None = None
    ) -> None:
        self._stretches = stretches
        sizes = [len(stretch) for stretch in stretches]
        super().__init__(sizes, sizes if global_batch_sizes is None else global_batch_sizes)

    def _key_epoch(self, epoch: int) -> int:
        return 0

    def _rows_of(self, epoch: int) -> Rows:
        return lambda step: list(self._stretches[step])


class OrderedBatchSampler(StretchBatchSampler):
    """For testing: each sample exactly once, in order.

    Ranks reduce their results together, so all take equally many steps, and no batch is
    empty: the samples are cut into (steps * ranks) stretches that differ by one at most.
    """

    def __init__(
        self,
        num_samples: int,
        batch_size: int,
        rank: int = 0,
        world_size: int = 1,
        *,
        where: str = "config.DATA.TEST",
    ) -> None:
        if num_samples < world_size:
            raise DataError(
                f"{where}: {num_samples} samples cannot be shared by {world_size} processes "
                f"without giving one twice. Use fewer processes, or more samples."
            )
        steps = -(-num_samples // (batch_size * world_size))
        # With batches of one it may not come out even: fewer steps, some with one more.
        steps = min(steps, num_samples // world_size)
        parts = steps * world_size
        cuts = [part * num_samples // parts for part in range(parts + 1)]
        mine = range(rank, parts, world_size)
        starts = cuts[::world_size]
        super().__init__(
            [range(cuts[part], cuts[part + 1]) for part in mine],
            [end - start for start, end in pairwise(starts)],
        )
        self._starts = starts

    def _first(self, step: int) -> int:
        return self._stretches[step].start - self._starts[step]


class ShuffledBatchSampler(OrderedBatchSampler):
    """For training, where each sample counts: every epoch each exactly once, in another order.

    Batches are as even as they come, on one rank and over ranks; they differ by one at most.
    """

    def __init__(
        self,
        num_samples: int,
        batch_size: int,
        rank: int = 0,
        world_size: int = 1,
        *,
        seed: int,
        where: str = "config.DATA.TRAIN",
    ) -> None:
        super().__init__(num_samples, batch_size, rank, world_size, where=where)
        self._num_samples, self._seed = num_samples, seed

    def _key_epoch(self, epoch: int) -> int:
        return epoch

    def _rows_of(self, epoch: int) -> Rows:
        order = random_order(self._num_samples, self._seed, epoch)
        return lambda step: order[self._stretches[step]].tolist()


def random_order(num_samples: int, seed: int, epoch: int) -> Tensor:
    """Draw the order of an epoch: the same numbers in either type, half the memory in int32."""
    small = num_samples <= torch.iinfo(torch.int32).max
    draw = epoch_generator(seed, epoch)
    return torch.randperm(num_samples, generator=draw, dtype=torch.int32 if small else torch.int64)


# ---- classes first, and then images of them
#
# Each step's global batch is a function of (seed, epoch, step) alone. Ranks take stretches of it.
# Within a batch an image comes once, unless its class has fewer images than are asked for.


class ClassBatchSampler(BatchSampler):
    """All batches are whole."""

    def __init__(
        self,
        labels: Sequence[Column],
        options: SplitOptions,
        rank: int,
        world_size: int,
        seed: int,
        where: str,
    ) -> None:
        self._members = members_of_classes(labels, where)
        self._batch = options.BATCHSIZE_PER_REPLICA
        self._global = self._batch * world_size
        self._world_size, self._rank, self._seed = world_size, rank, seed
        steps = self._plan(options, where)
        if not steps:
            raise DataError(f"{where}: there are fewer samples than the {self._global} of a batch.")
        super().__init__([self._batch] * steps, [self._global] * steps)

    @abstractmethod
    def _plan(self, options: SplitOptions, where: str) -> int:
        """Take what the sampler's own options say; return how many steps an epoch has."""

    def _rows_of(self, epoch: int) -> Rows:
        def rows(step: int) -> list[int]:
            draw = generator(b"step", self._seed, epoch, step)
            chosen = self._global_batch(epoch, step, draw)
            return chosen[self._rank * self._batch : (self._rank + 1) * self._batch].tolist()

        return rows

    @abstractmethod
    def _global_batch(self, epoch: int, step: int, draw: Generator) -> Tensor:
        """Return the rows of all ranks, one rank after the other."""

    def _images(self, number: int, count: int, draw: Generator) -> Tensor:
        """Draw so many rows of a class, as different as they can be."""
        members = self._members[number]
        rounds = -(-count // len(members))
        orders = [torch.randperm(len(members), generator=draw) for _ in range(rounds)]
        return torch.from_numpy(members)[torch.cat(orders)[:count]]


class StratifiedBatchSampler(ClassBatchSampler):
    """STRATIFIED_SAMPLER: a batch has CLASSES_PER_BATCH classes, and as many images of each.

    All ranks have the same classes, or with UNIQUE_CLASSES each its own. Classes come in a random
    order and then in another; an epoch is STEP_PER_EPOCH steps. Images of the classes a, b, c
    come as a, b, c, a, b, c, ...
    """

    def _plan(self, options: SplitOptions, where: str) -> int:
        chosen = options.STRATIFIED_SAMPLER
        self._per_rank = chosen.CLASSES_PER_BATCH
        self._groups = self._world_size if chosen.UNIQUE_CLASSES else 1
        self._at_once = self._per_rank * self._groups
        if self._at_once > len(self._members):
            ranks = f", {self._per_rank} on each of {self._groups} ranks" * (self._groups > 1)
            raise DataError(
                f"{where}.STRATIFIED_SAMPLER: a batch is to hold {self._at_once} classes{ranks}; "
                f"the dataset has {len(self._members)}. Lower CLASSES_PER_BATCH."
            )
        return chosen.STEP_PER_EPOCH

    def _global_batch(self, epoch: int, step: int, draw: Generator) -> Tensor:
        passed, place = divmod(step, len(self._members) // self._at_once)
        order = torch.randperm(
            len(self._members), generator=generator(b"classes", self._seed, epoch, passed)
        )
        classes = order[place * self._at_once : (place + 1) * self._at_once].tolist()
        of_each = self._global // self._at_once
        images = torch.stack([self._images(each, of_each, draw) for each in classes])
        grouped = images.view(self._groups, self._per_rank, of_each)
        return grouped.transpose(1, 2).flatten()


class PowerLawBatchSampler(ClassBatchSampler):
    """POWER_LAW_SAMPLER: each image's class is drawn, a few classes often and most seldom.

    The i-th class of a random order has a chance proportional to 1 / (1 + i) ** POWER. With a
    negative POWER a class has one proportional to the square root of its size.
    """

    def _plan(self, options: SplitOptions, where: str) -> int:
        sizes = torch.tensor([len(each) for each in self._members], dtype=torch.float64)
        power = options.POWER_LAW_SAMPLER.POWER
        if power < 0:
            self.chances = sizes.sqrt() / sizes.sqrt().sum()
        else:
            falling = torch.arange(1.0, len(sizes) + 1, dtype=torch.float64) ** -power
            order = torch.randperm(len(sizes), generator=generator(b"classes", self._seed))
            self.chances = (falling / falling.sum())[order]
        return int(sizes.sum()) // self._global

    def _global_batch(self, epoch: int, step: int, draw: Generator) -> Tensor:
        classes = torch.multinomial(self.chances, self._global, replacement=True, generator=draw)
        rows = torch.empty(self._global, dtype=torch.int64)
        for number, count in zip(*classes.unique(return_counts=True)):
            rows[classes == number] = self._images(int(number), int(count), draw)
        return rows


def members_of_classes(labels: Sequence[Column], where: str) -> list[NDArray[np.int64]]:
    """Return the rows of each class that has any, in the order of the classes' numbers."""
    if not labels or labels[0].ndim != 1 or not (labels[0] != NO_CLASS).any():
        raise DataError(
            f"{where}: STRATIFIED_SAMPLER and POWER_LAW_SAMPLER need LABEL_SOURCES with one class "
            f"for each image."
        )
    column = np.asarray(labels[0])
    order = np.argsort(column, kind="stable")
    order = order[column[order] != NO_CLASS]
    starts = np.flatnonzero(np.diff(column[order])) + 1
    return np.split(order.astype(np.int64), starts)
