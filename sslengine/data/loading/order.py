"""Which samples are in which batch of a rank: the sampler that a split's options choose."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sslengine.data.batch.class_samplers import PowerLawBatchSampler, StratifiedBatchSampler
from sslengine.data.batch.samplers import (
    BatchSampler,
    DistributedBatchSampler,
    OrderedBatchSampler,
    StreamBatchSampler,
    StretchBatchSampler,
)
from sslengine.data.loading.dataset import SSLDataset
from sslengine.data.options import DataOptions, SplitOptions, StreamOptions, own
from sslengine.data.sources.stream import StreamSource
from sslengine.errors import DataError

# The batches of a rank, where not all samples are read.
Stretches = Callable[[SSLDataset], Sequence[range]]


def batches_of(
    dataset: SSLDataset,
    options: DataOptions,
    split: str,
    rank: int,
    world_size: int,
    seed: int | None,
    stretches: Stretches | None = None,
) -> BatchSampler:
    """seed: of a training's order; None: each sample once, in order."""
    chosen, where = getattr(options, split), f"config.DATA.{split}"
    if dataset.stream:
        if seed is None:
            raise DataError(
                f"{where}.DATA_SOURCES: {chosen.DATA_SOURCES[0]} is a stream, which gives no "
                f"pass over each sample once. Evaluate on other data, for example on shards that "
                f"are stored here (webdataset)."
            )
        workers = options.NUM_DATALOADER_WORKERS
        return _of_stream(dataset, dataset.stream, chosen, workers, rank, world_size, where)
    if stretches:
        return StretchBatchSampler(stretches(dataset))
    if seed is None:
        share = (len(dataset), chosen.BATCHSIZE_PER_REPLICA, rank, world_size)
        return OrderedBatchSampler(*share, where=where)
    return _of_training(dataset, chosen, rank, world_size, seed, where)


def _of_training(
    dataset: SSLDataset, options: SplitOptions, rank: int, world_size: int, seed: int, where: str
) -> BatchSampler:
    by_class = {
        StratifiedBatchSampler: options.STRATIFIED_SAMPLER.ENABLED,
        PowerLawBatchSampler: options.POWER_LAW_SAMPLER.ENABLED,
    }
    for chosen, enabled in by_class.items():
        if enabled:
            return chosen(dataset.standard_labels, options, rank, world_size, seed, where)
    share = (len(dataset), options.BATCHSIZE_PER_REPLICA, rank, world_size)
    shuffle = not options.USE_DEBUGGING_SAMPLER
    return DistributedBatchSampler(
        *share, seed=seed, drop_last=options.DROP_LAST, shuffle=shuffle, where=where
    )


def _of_stream(
    dataset: SSLDataset, stream: StreamSource, options: SplitOptions, workers: int, rank: int,
    world_size: int, where: str,
) -> BatchSampler:  # fmt: skip
    batch = options.BATCHSIZE_PER_REPLICA
    sampler = StreamBatchSampler(len(stream), batch, rank, world_size, options.DROP_LAST, where)
    stream.distribute(batch, world_size, workers, own(options, StreamOptions).LANES)
    dataset.distribute(sum(sampler.global_batch_sizes))
    return sampler
