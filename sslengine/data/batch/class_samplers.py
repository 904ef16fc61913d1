"""Training batches that choose classes first, and then images of them.

Each step's global batch is a function of (seed, epoch, step) alone. Ranks take stretches of it.
Within a batch an image comes once, unless its class has fewer images than are asked for.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from sslengine.data.batch.samplers import BatchSampler, Rows
from sslengine.data.manifest.classes import NO_CLASS, Column
from sslengine.data.options import SplitOptions
from sslengine.data.seeding import generator
from sslengine.errors import DataError


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
