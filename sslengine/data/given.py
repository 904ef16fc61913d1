"""Data that is given as Python objects: what a DataFeed is to the task, without a config.

    a dataset      of samples (input, target); shuffled and shared out by the engine's samplers:
                    each sample once an epoch, for any number of ranks
    a loader        of batches, which can be read again and again and has a length: a DataLoader,
                    a list. Each rank reads its own.

A sample draws the same numbers for any number of workers, and a run resumes within an epoch: of a
dataset the remaining samples are read; of a loader all, and those that were used are discarded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.data import BatchSampler as TorchBatchSampler
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate
from torch.utils.data import RandomSampler as TorchRandomSampler
from torch.utils.data import SequentialSampler as TorchSequentialSampler

from sslengine.data.batch.collators import FIELDS, Batch
from sslengine.data.batch.samplers import (
    BatchSampler,
    DistributedBatchSampler,
    OrderedBatchSampler,
    ShuffledBatchSampler,
)
from sslengine.data.feed import LoadedFeed, move_batches
from sslengine.data.loading.dataset import SampleBatch
from sslengine.data.loading.loader import Loader
from sslengine.data.options import DataOptions
from sslengine.data.seeding import SampleKey, seed_batch, seed_sample, streams_kept
from sslengine.distributed.collectives import gather_objects
from sslengine.distributed.ranks import rank, world_size
from sslengine.errors import DataError

Collate = Callable[[list[Any]], Any]


class Items(Dataset[Any]):
    """The user's samples by the samplers' keys, each with its own random numbers."""

    def __init__(self, dataset: Any, seed: int) -> None:
        self.dataset, self.seed = dataset, seed

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitems__(self, keys: Sequence[SampleKey]) -> SampleBatch:
        with streams_kept():
            return SampleBatch(map(self._item, keys), self.seed, keys)

    def _item(self, key: SampleKey) -> dict[str, Any]:
        seed_sample(self.seed, key)
        return {"data_idx": key[1], "item": self.dataset[key[1]]}


def _collate(collate: Collate, where: str, samples: Sequence[Any]) -> Batch:
    batch = as_batch(collate([each["item"] for each in samples]), where)
    return {**batch, "data_idx": [torch.tensor([each["data_idx"] for each in samples])]}


def as_batch(given: Any, where: str) -> Batch:
    """(input, target), an input alone, or a dict with `data`, perhaps `label`, and fields."""
    if isinstance(given, Tensor):
        return {"data": [given], "label": [None]}
    if isinstance(given, Mapping) and "data" in given:
        fields = [key for key in given if key not in ("data", "label")]
        also = {FIELDS: [tuple(fields)]} if fields else {}
        return {"label": [None], **{key: [value] for key, value in given.items()}, **also}
    if isinstance(given, (list, tuple)) and len(given) in (1, 2):
        return {"data": [given[0]], "label": [given[1] if len(given) == 2 else None]}
    held = f"a {type(given).__name__}"
    held += f" of {len(given)}" if isinstance(given, (list, tuple)) else ""
    raise DataError(
        f"{where}: expected batches (input, target), an input alone, or a dict with the keys "
        f"`data` and `label`; got {held}. Give a collate_fn that makes one of these."
    )


class DatasetFeed(LoadedFeed):
    """A dataset, by the engine's own samplers and workers."""

    def __init__(
        self,
        dataset: Any,
        batch_size: int,
        *,
        shuffle: bool,
        seed: int,
        device: torch.device,
        drop_last: bool = False,
        collate_fn: Collate | None = None,
        workers: int = 0,
        where: str = "data",
    ) -> None:
        """batch_size: on each rank, at most. drop_last: all alike; what is over is left out."""
        share = (len(dataset), batch_size, rank(), world_size())
        sampler: BatchSampler
        if not shuffle:
            sampler = OrderedBatchSampler(*share, where=where)
        elif drop_last:
            sampler = DistributedBatchSampler(*share, seed=seed, drop_last=True, where=where)
        else:
            sampler = ShuffledBatchSampler(*share, seed=seed, where=where)
        self.device, self.num_samples = device, len(dataset)
        loader = Loader(
            Items(dataset, seed),  # type: ignore[arg-type]
            sampler,
            partial(_collate, collate_fn or default_collate, where),
            DataOptions(NUM_DATALOADER_WORKERS=workers),
            pin_memory=device.type == "cuda",
            mp_method="forkserver",
        )
        self._load(loader, sampler)


class LoaderFeed:
    """A loader of the user's own. Collective: ranks tell each other their sizes."""

    def __init__(self, loader: Any, *, seed: int, device: torch.device, where: str) -> None:
        self._loader, self._seed, self._where, self.device = loader, seed, where, device
        _check_repeatable(loader, where)
        self.batch_sizes = _sizes(loader, seed, where)
        if not self.batch_sizes:
            raise DataError(f"{where}: the loader has no batches.")
        of_all = gather_objects(self.batch_sizes)
        if len({len(each) for each in of_all}) > 1:
            counts = ", ".join(str(len(each)) for each in of_all)
            raise DataError(
                f"{where}: ranks have different numbers of batches, {counts}, and would wait for "
                f"each other. Give the dataset itself: the engine shares it out."
            )
        self.global_batch_sizes = [sum(step) for step in zip(*of_all)]
        self.num_samples = sum(self.global_batch_sizes)

    @property
    def steps_per_epoch(self) -> int:
        return len(self.batch_sizes)

    def batches(
        self, epoch: int = 0, first_step: int = 0, last_step: int | None = None
    ) -> Iterator[Batch]:
        last_step = self.steps_per_epoch if last_step is None else last_step
        return move_batches(self._read(epoch, first_step, last_step), self.device, overlap=False)

    def close(self) -> None:
        pass

    def _read(self, epoch: int, first: int, last: int) -> Iterator[Batch]:
        """What it draws depends on seed, epoch and step alone; a list draws nothing."""
        if isinstance(self._loader, (list, tuple)):
            yield from (as_batch(batch, self._where) for batch in self._loader[first:last])
            return
        for each in (self._loader, *samplers_of(self._loader)):
            if hasattr(each, "set_epoch"):
                each.set_epoch(epoch)
        with streams_kept():
            seed_batch(self._seed, (epoch, -1))
            batches = iter(self._loader)
        for step in range(last):
            with streams_kept():
                seed_batch(self._seed, (epoch, step))
                batch = next(batches, None)
            if batch is None:
                raise DataError(f"{self._where}: the loader ended after {step} of {last} batches.")
            if step >= first:
                yield as_batch(batch, self._where)


def samplers_of(loader: Any) -> list[Any]:
    """Each once: of samples, of batches, and what that one reads."""
    of_batches = getattr(loader, "batch_sampler", None)
    found = (
        getattr(loader, "sampler", None), of_batches, getattr(of_batches, "sampler", None)
    )  # fmt: skip
    return list({id(each): each for each in found if each is not None}.values())


def _check_repeatable(loader: Any, where: str) -> None:
    with suppress(TypeError):
        if len(loader) >= 0 and hasattr(loader, "__iter__") and not hasattr(loader, "__next__"):
            return
    raise DataError(
        f"{where}: expected a dataset, or a loader of batches that has a length and can be read "
        f"again every epoch, such as a DataLoader or a list; got {type(loader).__name__}."
    )


def _sizes(loader: Any, seed: int, where: str) -> list[int]:
    """How many samples each batch holds. A loader that does not tell is read through once."""
    size = getattr(loader, "batch_size", None)
    listed = isinstance(loader, DataLoader) and not isinstance(loader.dataset, IterableDataset)
    if listed and size is not None:
        count = len(loader.sampler)  # type: ignore[arg-type]
        full, rest = divmod(count, size)
        return [size] * full + ([rest] if rest and not loader.drop_last else [])
    with streams_kept():
        seed_batch(seed, (0, -1))
        return [rows_of(as_batch(batch, where)["data"]) for batch in loader]


def rows_of(batch: Any) -> int:
    return next((len(leaf) for leaf in tree_leaves(batch) if isinstance(leaf, Tensor)), 1)


def make_feed(
    given: Any,
    batch_size: int,
    *,
    shuffle: bool,
    seed: int,
    device: torch.device,
    drop_last: bool = False,
    collate_fn: Collate | None = None,
    workers: int = 0,
    where: str = "data",
    whole: bool = False,
) -> DatasetFeed | LoaderFeed:
    """A DataLoader with torch's own samplers is taken apart where several ranks share its data.

    whole: each sample once, in the order of the dataset, also from such a DataLoader on one rank.
    """
    if isinstance(given, DataLoader) and _has_torchs_sampler(given):
        if world_size() > 1:
            shuffle = shuffle and isinstance(given.sampler, TorchRandomSampler)
            batch_size, drop_last = given.batch_size or batch_size, given.drop_last and shuffle
            collate_fn, workers = given.collate_fn, given.num_workers
            given = given.dataset
        elif whole:
            given = _in_order(given)
    is_dataset = hasattr(given, "__getitem__") and hasattr(given, "__len__")
    if is_dataset and not isinstance(given, (list, tuple)):
        return DatasetFeed(
            given, batch_size, shuffle=shuffle, seed=seed, device=device, drop_last=drop_last,
            collate_fn=collate_fn, workers=workers, where=where,
        )  # fmt: skip
    return LoaderFeed(given, seed=seed, device=device, where=where)


def _in_order(loader: DataLoader[Any]) -> DataLoader[Any]:
    """With each sample once, in the order of the dataset; by workers of the same kind."""
    is_torchs = (
        type(loader).__iter__ is DataLoader.__iter__
        and type(loader.batch_sampler) is TorchBatchSampler
    )
    in_order = isinstance(loader.sampler, TorchSequentialSampler) and not loader.drop_last
    if in_order or not is_torchs:
        return loader
    return DataLoader(
        loader.dataset, loader.batch_size, num_workers=loader.num_workers,
        collate_fn=loader.collate_fn, pin_memory=loader.pin_memory, timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn, prefetch_factor=loader.prefetch_factor,
        multiprocessing_context=loader.multiprocessing_context,
    )  # fmt: skip


def _has_torchs_sampler(loader: DataLoader[Any]) -> bool:
    return loader.batch_size is not None and type(loader.sampler) in (
        TorchRandomSampler,
        TorchSequentialSampler,
    )
