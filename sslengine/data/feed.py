"""The batches of one split, for one rank: what the task sees of the data side.

Batches come to the device with every tensor but those of HOST_KEYS, and images are finished there.
With a GPU, and if ENABLE_ASYNC_GPU_COPY is set, the next batch is copied on a separate stream while
the current step computes. The host waits for neither.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from sslengine.data.augment.tensors import Finish
from sslengine.data.batch.collators import Batch, image_keys
from sslengine.data.batch.samplers import (
    BatchSampler,
    DistributedBatchSampler,
    OrderedBatchSampler,
    PowerLawBatchSampler,
    StratifiedBatchSampler,
    StretchBatchSampler,
)
from sslengine.data.fingerprint import hash_list
from sslengine.data.loading.dataset import UNREADABLE, SSLDataset
from sslengine.data.loading.loader import Loader
from sslengine.data.manifest.classes import Classes
from sslengine.data.options import DataOptions, SplitOptions, StreamOptions, own
from sslengine.errors import DataError
from sslengine.registry import COLLATORS

logger = logging.getLogger(__name__)

S = TypeVar("S")
T = TypeVar("T")
U = TypeVar("U")

# The batches of a rank, where not all samples are read.
Stretches = Callable[[SSLDataset], Sequence[range]]
# For messages and book-keeping: read on the host, without waiting for the device.
HOST_KEYS = ("data_idx",)
# MAX_INVALID_SHARE is that of so many samples: the latest, and no fewer than the first number.
FEWEST, LATEST = 100, 2000
NAMED = 1000  # unreadable samples in the log, at most


class LoadedFeed:
    """The batches of a Loader, as they come to the device. A subclass loads them."""

    device: torch.device
    _overlap = True  # of copies with computing
    _finish: Finish | None = None

    def _load(self, loader: Loader, sampler: BatchSampler) -> None:
        self._loader = loader
        # How many samples this rank's batches hold, for each step of an epoch; and those of all.
        self.batch_sizes = sampler.batch_sizes
        self.global_batch_sizes = sampler.global_batch_sizes

    @property
    def steps_per_epoch(self) -> int:
        return len(self.batch_sizes)

    def batches(
        self, epoch: int = 0, first_step: int = 0, last_step: int | None = None
    ) -> Iterator[Batch]:
        """Return the batches of these steps of the epoch; `last_step` is not among them.

        Workers begin to load when this is called. A feed gives one iteration at a time:
        a new one ends the one before.
        """
        end = self.steps_per_epoch if last_step is None else last_step
        sizes = self.batch_sizes[first_step:end]
        batches = self._watch(self._loader.batches(epoch, first_step, end), sizes)
        return move_batches(batches, self.device, self._overlap, self._finish)

    def _watch(self, batches: Iterator[Batch], sizes: Sequence[int]) -> Iterator[Batch]:
        return batches

    def then(self, epoch: int, first_step: int, last_step: int) -> None:
        """Let workers load the first batches of these steps while the last of the others are used.

        For the next call of `batches`; a call with other steps works as usual.
        """
        self._loader.then(epoch, first_step, last_step)

    def close(self) -> None:
        """Stop the workers."""
        self._loader.close()


class DataFeed(LoadedFeed):
    """
    feed = DataFeed(options, "TRAIN", training=True, seed=0)
    for batch in feed.batches(epoch=3): ...
    for batch in feed.batches(epoch=4, first_step=100): ...     # resumed
    feed.close()
    """

    def __init__(
        self,
        options: DataOptions,
        split: str,
        *,
        training: bool,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
        device: torch.device | str = "cpu",
        mp_method: str = "forkserver",
        classes: Sequence[Classes] = (),
        stretches: Stretches | None = None,
    ) -> None:
        """
        split: TRAIN or TEST, whose options to use.
        training: random order, evenly shared batches; otherwise in order, each sample once.
        stretches: this rank's batches, where not all samples are read.
        seed: of order and augmentation; the same on every rank.
        mp_method: how workers start (config.MULTI_PROCESSING_METHOD).
        classes: of TRAIN, for another split.
        """
        chosen: SplitOptions = getattr(options, split)
        self.device = torch.device(device)
        self.where, self._paths = f"config.DATA.{split}", chosen.DATA_PATHS
        collate = COLLATORS.get(chosen.COLLATE_FUNCTION, f"{self.where}.COLLATE_FUNCTION")
        self.dataset = SSLDataset(
            chosen, split, seed, options.AUGMENT_BACKEND, image_keys(collate), classes, training,
            options.HOLD_OUT,
        )  # fmt: skip
        self._finish = self.dataset.finish_on(self.device)
        if stretches and not self.dataset.stream:
            sampler: BatchSampler = StretchBatchSampler(stretches(self.dataset))
        else:
            workers = options.NUM_DATALOADER_WORKERS
            order = seed if training else None
            sampler = make_sampler(
                self.dataset, chosen, workers, rank, world_size, order, self.where
            )
        if chosen.DROP_LAST and split == "TEST" and not training:
            logger.warning("%s.DROP_LAST does nothing: each test sample counts.", self.where)
        loader = Loader(
            self.dataset,
            sampler,
            COLLATORS.maker(chosen.COLLATE_FUNCTION, chosen.COLLATE_FUNCTION_PARAMS),
            options,
            pin_memory=options.PIN_MEMORY and self.device.type == "cuda",
            mp_method=mp_method,
        )
        self._load(loader, sampler)
        self._overlap = options.ENABLE_ASYNC_GPU_COPY
        self._invalid = InvalidSamples(
            self.where,
            chosen.MAX_INVALID_SHARE,
            self.dataset,
            "another sample replaces each" if training else "each is left out",
        )

    @property
    def classes(self) -> list[Classes]:
        """Return the run's classes, of each label source."""
        return self.dataset.classes

    @cached_property
    def list_hashes(self) -> dict[str, str]:
        """Return hashes of the images' names and of their labels."""
        return hash_list(self.dataset, self._paths)

    @property
    def num_samples(self) -> int:
        """Count the samples of all ranks."""
        return len(self.dataset)

    @property
    def unreadable(self) -> set[int]:
        """Return the numbers of the samples that could not be read so far, on this rank."""
        return self._invalid.samples

    def _watch(self, batches: Iterator[Batch], sizes: Sequence[int]) -> Iterator[Batch]:
        """Take note of unreadable samples, while the batch is on the host."""
        for step, (batch, size) in enumerate(zip(batches, sizes), 1):
            if isinstance(batch, dict):  # a custom collator may make anything
                bad: Any = batch.pop(UNREADABLE, torch.empty(0))
                self._invalid.note(size, bad.tolist())
                if step == len(sizes):  # now: who has them all does not ask for another one
                    self._invalid.tell_count()
            yield batch


def make_sampler(
    dataset: SSLDataset, options: SplitOptions, workers: int, rank: int, world_size: int,
    seed: int | None, where: str,
) -> BatchSampler:  # fmt: skip
    """Make the sampler that a split's options choose. seed: of a training's order; None: each
    sample once, in order."""
    batch = options.BATCHSIZE_PER_REPLICA
    share = (len(dataset), batch, rank, world_size)
    if stream := dataset.stream:
        if seed is None:
            raise DataError(
                f"{where}.DATA_SOURCES: {options.DATA_SOURCES[0]} is a stream, which gives no "
                f"pass over each sample once. Evaluate on other data, for example on shards that "
                f"are stored here (webdataset)."
            )
        length = len(stream)
        if not options.DROP_LAST:  # the last batch is full too
            length += -length % (batch * world_size)
        sampler = DistributedBatchSampler(
            length, batch, rank, world_size, seed=0, drop_last=True, shuffle=False, where=where
        )
        stream.distribute(batch, world_size, workers, own(options, StreamOptions).LANES)
        dataset.distribute(sum(sampler.global_batch_sizes))
        return sampler
    if seed is None:
        return OrderedBatchSampler(*share, where=where)
    for chosen, enabled in (
        (StratifiedBatchSampler, options.STRATIFIED_SAMPLER.ENABLED),
        (PowerLawBatchSampler, options.POWER_LAW_SAMPLER.ENABLED),
    ):
        if enabled:
            return chosen(dataset.standard_labels, options, rank, world_size, seed, where)
    shuffle = not options.USE_DEBUGGING_SAMPLER
    return DistributedBatchSampler(
        *share, seed=seed, drop_last=options.DROP_LAST, shuffle=shuffle, where=where
    )


class InvalidSamples:
    """Samples of one split that could not be read on one rank: the first is reported, others are
    logged and counted; too many of them end the run."""

    def __init__(
        self,
        where: str,
        max_share: float,
        dataset: SSLDataset,
        instead: str,
    ) -> None:
        """instead: what becomes of such a sample, in words."""
        self._where, self._max_share, self._dataset = where, max_share, dataset
        self._instead = instead
        self.samples: set[int] = set()
        self._told = 1  # how many of them were reported; the first has its own message
        self._one_was_valid = False
        self._batches: deque[tuple[int, int]] = deque()
        self._invalid = self._seen = 0  # in these batches

    def note(self, size: int, bad: Sequence[int]) -> None:
        """Take note of a batch of so many samples. bad: those that could not be read."""
        self._one_was_valid = self._one_was_valid or len(bad) < size
        self._batches.append((len(bad), size))
        self._invalid, self._seen = self._invalid + len(bad), self._seen + size
        while self._seen - self._batches[0][1] >= LATEST:
            invalid, seen = self._batches.popleft()
            self._invalid, self._seen = self._invalid - invalid, self._seen - seen
        if not bad:
            return
        if not self.samples:
            logger.warning(
                "%s: cannot read %s. Such samples are counted, and the log names them; %s.",
                self._where, self._dataset.why_unreadable(bad[0]), self._instead,
            )  # fmt: skip
            self.samples.add(bad[0])
        for sample in sorted(set(bad) - self.samples):
            if len(self.samples) < NAMED:
                logger.info("%s: cannot read %s either", self._where, self._dataset.name(sample))
            self.samples.add(sample)
        self._stop_if_too_many(bad[0])

    def tell_count(self) -> None:
        """Report after a pass over the data, if there are more of them than before."""
        if len(self.samples) > self._told:
            self._told = len(self.samples)
            logger.warning(
                "%s: %d of %d samples could not be read so far; the log names them.",
                self._where, self._told, len(self._dataset),
            )  # fmt: skip

    def _stop_if_too_many(self, one: int) -> None:
        if not self._one_was_valid and len(self.samples) >= min(FEWEST, len(self._dataset)):
            why = f"none of the first {len(self.samples)} images can be read."
        elif self._seen >= FEWEST and self._invalid > self._max_share * self._seen:
            why = (
                f"{self._invalid / self._seen:.0%} of the latest images cannot be read, more than "
                f"{self._where}.MAX_INVALID_SHARE={self._max_share:g}."
            )
        else:
            return
        raise DataError(f"{self._where}: {why} One of them: {self._dataset.why_unreadable(one)}")


# ---- to the device


def move_batches(
    batches: Iterable[Batch], device: torch.device, overlap: bool, finish: Finish | None = None
) -> Iterator[Batch]:
    """Return the batches as they come to the device."""
    if finish is None and device.type == "cpu":
        return iter(batches)

    def arrive(batch: Batch) -> Batch:
        moved = batch if device.type == "cpu" else _move(batch, device)
        return finish.finish_batch(moved) if finish and isinstance(batch, dict) else moved

    if device.type != "cuda" or not overlap:
        return map(arrive, batches)
    stream = torch.cuda.Stream(device)

    def start(batch: Batch) -> tuple[Batch, torch.cuda.Event]:
        with torch.cuda.stream(stream):
            return arrive(batch), stream.record_event()

    def wait(copy: tuple[Batch, torch.cuda.Event]) -> Batch:
        batch, done = copy
        compute = torch.cuda.current_stream(device)
        compute.wait_event(done)

        def keep(tensor: Tensor) -> None:
            """Keep its memory from the next copy while the step still reads it."""
            if tensor.is_cuda:
                tensor.record_stream(compute)

        tree_map_only(Tensor, keep, batch)
        return batch

    return start_ahead(batches, start, wait)


def start_ahead(
    items: Iterable[S], start: Callable[[S], T], finish: Callable[[T], U]
) -> Iterator[U]:
    """Start each item before the one that precedes it is given out."""
    waiting: list[T] = []
    for item in items:
        waiting.append(start(item))
        if len(waiting) == 2:
            yield finish(waiting.pop(0))
    yield from map(finish, waiting)


def _move(batch: Batch, device: torch.device) -> Batch:
    # From pinned memory this returns at once; from other memory the host waits.
    def move(tensor: Tensor) -> Tensor:
        return tensor.to(device, non_blocking=True)

    if not isinstance(batch, dict):  # a custom collator may make anything
        return tree_map_only(Tensor, move, batch)  # type: ignore[no-any-return]
    return {
        key: values if key in HOST_KEYS else tree_map_only(Tensor, move, values)
        for key, values in batch.items()
    }
