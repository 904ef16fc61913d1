"""The batches of one split, for one rank: what the task sees of the data side."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from sslengine.data.collators import Batch
from sslengine.data.dataset import SSLDataset
from sslengine.data.device_prefetch import on_device
from sslengine.data.loader import Loader
from sslengine.data.options import DataOptions, SplitOptions
from sslengine.data.samplers import BatchSampler, DistributedBatchSampler, OrderedBatchSampler
from sslengine.errors import DataError
from sslengine.registry import COLLATORS

logger = logging.getLogger(__name__)

# So many unreadable images and not one readable: something is wrong with all of them.
HOPELESS = 100


class DataFeed:
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
    ) -> None:
        """
        split: TRAIN or TEST, whose options to use.
        training: random order, evenly shared batches; otherwise in order, each sample once.
        seed: of order and augmentation; the same on every rank.
        mp_method: how workers start (config.MULTI_PROCESSING_METHOD).
        """
        chosen: SplitOptions = getattr(options, split)
        self.device = torch.device(device)
        self.where = f"config.DATA.{split}"
        self.dataset = SSLDataset(chosen, split, seed)
        share = (len(self.dataset), chosen.BATCHSIZE_PER_REPLICA, rank, world_size)
        self._sampler: BatchSampler = (
            DistributedBatchSampler(*share, seed=seed, drop_last=chosen.DROP_LAST, where=self.where)
            if training
            else OrderedBatchSampler(*share, where=self.where)
        )
        if chosen.DROP_LAST and split == "TEST" and not training:
            logger.warning("%s.DROP_LAST does nothing: each test sample counts.", self.where)
        collate = COLLATORS.get(chosen.COLLATE_FUNCTION, f"{self.where}.COLLATE_FUNCTION")
        self._loader = Loader(
            self.dataset,
            self._sampler,
            partial(collate, **chosen.COLLATE_FUNCTION_PARAMS),
            options,
            pin_memory=options.PIN_MEMORY and self.device.type == "cuda",
            mp_method=mp_method,
        )
        self._overlap = options.ENABLE_ASYNC_GPU_COPY
        # The numbers of the samples that could not be read so far, on this rank.
        self.unreadable: set[int] = set()
        self._one_was_readable = False

    @property
    def num_samples(self) -> int:
        """Over all ranks."""
        return len(self.dataset)

    @property
    def steps_per_epoch(self) -> int:
        return len(self._sampler.batch_sizes)

    @property
    def batch_sizes(self) -> list[int]:
        """How many samples this rank's batches hold, for each step of an epoch."""
        return self._sampler.batch_sizes

    @property
    def global_batch_sizes(self) -> list[int]:
        """The same over all ranks."""
        return self._sampler.global_batch_sizes

    def batches(
        self, epoch: int = 0, first_step: int = 0, last_step: int | None = None
    ) -> Iterator[Batch]:
        """The batches of these steps of the epoch; `last_step` is not among them.

        Workers begin to load when this is called. A feed gives one iteration at a time:
        a new one ends the one before.
        """
        self._sampler.set_window(epoch, first_step, last_step)
        return on_device(self._watch(self._loader.batches()), self.device, self._overlap)

    def close(self) -> None:
        """Stop the workers."""
        self._loader.close()

    def _watch(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Take note of unreadable images, while the batch is on the host."""
        for batch in batches:
            if not isinstance(batch, dict):  # a collator of one's own may make anything
                yield batch
                continue
            for valid, index in zip(batch.get("data_valid", ()), batch.get("data_idx", ())):
                self._note(valid.numpy() > 0, index.numpy())
            yield batch

    def _note(self, readable: NDArray[np.bool_], index: NDArray[np.int64]) -> None:
        self._one_was_readable = self._one_was_readable or bool(readable.any())
        if readable.all():
            return
        bad = index[~readable].tolist()
        if not self.unreadable:
            logger.warning(
                "%s: cannot read %s. A grey image with data_valid -1 stands for it; "
                "further such images are counted, not told.",
                self.where,
                self.dataset.why_unreadable(bad[0]),
            )
        self.unreadable.update(bad)
        if not self._one_was_readable and len(self.unreadable) >= min(HOPELESS, self.num_samples):
            raise DataError(
                f"{self.where}: none of the first {len(self.unreadable)} images can be read. "
                f"One of them: {self.dataset.why_unreadable(bad[0])}"
            )
