"""The batches of one split, for one rank: what the task sees of the data side."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import torch

from sslengine.data.batch.collators import Batch, image_keys
from sslengine.data.fingerprint import hash_list
from sslengine.data.loading.ahead import LoadedAhead
from sslengine.data.loading.dataset import UNREADABLE, SSLDataset
from sslengine.data.loading.device_prefetch import on_device
from sslengine.data.loading.invalid import InvalidSamples
from sslengine.data.loading.loader import Loader
from sslengine.data.loading.order import Stretches, batches_of
from sslengine.data.loading.repeated import repeat_check
from sslengine.data.manifest.classes import Classes
from sslengine.data.options import DataOptions, SplitOptions
from sslengine.registry import COLLATORS

logger = logging.getLogger(__name__)


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
        self._sampler = batches_of(
            self.dataset, options, split, rank, world_size, seed if training else None, stretches
        )
        if chosen.DROP_LAST and split == "TEST" and not training:
            logger.warning("%s.DROP_LAST does nothing: each test sample counts.", self.where)
        make_batch = COLLATORS.maker(chosen.COLLATE_FUNCTION, chosen.COLLATE_FUNCTION_PARAMS)
        checked = training and rank == 0
        self._loader = Loader(
            self.dataset,
            self._sampler,
            make_batch,
            options,
            pin_memory=options.PIN_MEMORY and self.device.type == "cuda",
            mp_method=mp_method,
            check=repeat_check(self.dataset, chosen, self.where) if checked else None,
        )
        self._ahead = LoadedAhead(self._loader, self._sampler)
        self._overlap = options.ENABLE_ASYNC_GPU_COPY
        self._invalid = InvalidSamples(
            self.where,
            chosen.MAX_INVALID_SHARE,
            len(self.dataset),
            self.dataset.name,
            self.dataset.why_unreadable,
            "another sample replaces each" if training else "each is left out",
        )

    @property
    def classes(self) -> list[Classes]:
        """Of the run, one for each label source."""
        return self.dataset.classes

    @cached_property
    def list_hashes(self) -> dict[str, str]:
        """Of the images' names and of their labels."""
        return hash_list(self.dataset, self._paths)

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
        end = self.steps_per_epoch if last_step is None else last_step
        sizes = self.batch_sizes[first_step:end]
        batches = self._watch(self._ahead.batches(epoch, first_step, end), sizes)
        return on_device(batches, self.device, self._overlap, self._finish)

    def then(self, epoch: int, first_step: int, last_step: int) -> None:
        """Workers load the first batches of these steps while the last of the others are used.

        For the next call of `batches`; a call with other steps works as usual.
        """
        self._ahead.then(epoch, first_step, last_step)

    @property
    def unreadable(self) -> set[int]:
        """The numbers of the samples that could not be read so far, on this rank."""
        return self._invalid.samples

    def close(self) -> None:
        """Stop the workers."""
        self._loader.close()

    def _watch(self, batches: Iterator[Batch], sizes: Sequence[int]) -> Iterator[Batch]:
        """Take note of unreadable samples, while the batch is on the host."""
        for step, (batch, size) in enumerate(zip(batches, sizes), 1):
            if not isinstance(batch, dict):  # a custom collator may make anything
                yield batch
                continue
            bad: Any = batch.pop(UNREADABLE, torch.empty(0))
            self._invalid.note(size, bad.tolist())
            if step == len(sizes):  # now: who has them all does not ask for another one
                self._invalid.tell_count()
            yield batch
