from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sslengine.data.batch.samplers import (
    BatchSampler,
    DistributedBatchSampler,
    OrderedBatchSampler,
    ShuffledBatchSampler,
)
from sslengine.data.seeding import epoch_generator
from sslengine.errors import DataError

SIZES = {
    "num_samples": st.integers(1, 200),
    "batch_size": st.integers(1, 17),
    "world_size": st.sampled_from([1, 2, 3, 4, 8]),
}


def shuffled(
    num_samples: int, batch_size: int, world_size: int, drop_last: bool = False, seed: int = 0
) -> list[DistributedBatchSampler]:
    return [
        DistributedBatchSampler(
            num_samples, batch_size, rank, world_size, seed=seed, drop_last=drop_last
        )
        for rank in range(world_size)
    ]


def global_batches(samplers: Sequence[BatchSampler], epoch: int = 0) -> list[list[int]]:
    """For each step the samples of all ranks, in rank order."""
    for sampler in samplers:
        sampler.set_window(epoch)
    steps = zip(*samplers, strict=True)
    return [[key[1] for batch in step for key in batch] for step in steps]


@given(**SIZES, epoch=st.integers(0, 5))
def test_an_epoch_is_all_samples(
    num_samples: int, batch_size: int, world_size: int, epoch: int
) -> None:
    samplers = shuffled(num_samples, batch_size, world_size)
    seen = [each for batch in global_batches(samplers, epoch) for each in batch]
    assert set(seen) == set(range(num_samples))
    assert 0 <= len(seen) - num_samples < world_size
    assert sorted(seen[:num_samples]) == list(range(num_samples))


def test_the_order_is_one_permutation() -> None:
    order = torch.randperm(96, generator=epoch_generator(5, 2)).tolist()
    batches = global_batches(shuffled(96, 4, 3, seed=5), 2)
    assert batches == [order[start : start + 12] for start in range(0, 96, 12)]


@given(**SIZES, drop_last=st.booleans())
def test_sizes_are_known_and_equal_on_all_ranks(
    num_samples: int, batch_size: int, world_size: int, drop_last: bool
) -> None:
    if drop_last and num_samples < batch_size * world_size:
        return
    samplers = shuffled(num_samples, batch_size, world_size, drop_last)
    for sampler in samplers:
        assert [len(batch) for batch in sampler] == samplers[0].batch_sizes
    for sampler in samplers:
        assert sampler.global_batch_sizes == [len(each) for each in global_batches(samplers)]
    sizes = samplers[0].batch_sizes
    assert sizes[:-1] == [batch_size] * (len(sizes) - 1)
    if drop_last:
        assert sizes == [batch_size] * (num_samples // (batch_size * world_size))
        seen = [each for batch in global_batches(samplers) for each in batch]
        assert len(set(seen)) == len(seen)


@given(**SIZES, data=st.data())
def test_a_window_is_that_part_of_the_epoch(
    num_samples: int, batch_size: int, world_size: int, data: st.DataObject
) -> None:
    sampler = shuffled(num_samples, batch_size, world_size)[-1]
    sampler.set_window(2)
    whole = list(sampler)
    first = data.draw(st.integers(0, len(whole)))
    last = data.draw(st.integers(first, len(whole)))
    sampler.set_window(2, first, last)
    assert len(sampler) == last - first
    assert list(sampler) == whole[first:last]
    sampler.set_window(2, first)
    assert list(sampler) == whole[first:]


def test_the_window_is_that_of_when_the_iteration_began() -> None:
    (sampler,) = shuffled(12, 4, 1)
    sampler.set_window(1)
    expected = list(sampler)
    iterator = iter(sampler)
    sampler.set_window(2, 1, 2)
    assert list(iterator) == expected


def test_a_window_that_follows() -> None:
    """Also one that comes when the iteration has ended, as a loader that looks ahead sees it."""
    (sampler,) = shuffled(20, 4, 1)
    alone = [list(sampler.keys(epoch, range(5))) for epoch in range(3)]
    sampler.set_window(0, 3)
    iter(sampler)  # torch makes two, and uses one
    keys = iter(sampler)
    sampler.then(1, 0, 5)
    assert list(keys) == alone[0][3:] + alone[1]
    sampler.then(2, 0, 2)
    assert list(keys) == alone[2][:2]
    sampler.set_window(2, 4)
    assert list(keys) == []
    assert list(sampler) == alone[2][4:]


def test_every_epoch_and_every_seed_has_its_order() -> None:
    orders = {
        tuple(map(tuple, global_batches(shuffled(64, 8, 1, seed=seed), epoch)))
        for seed in (0, 1)
        for epoch in (0, 1)
    }
    assert len(orders) == 4
    assert all(sum(order, ()) != tuple(range(64)) for order in orders)


def test_a_batch_larger_than_the_data_set() -> None:
    with pytest.raises(
        DataError,
        match=r"config.DATA.TRAIN: the dataset has 100 samples, fewer than the global batch of "
        r"256 \(64 on each of 4 processes\), .*DROP_LAST=false, .*BATCHSIZE_PER_REPLICA to 25,",
    ):
        shuffled(100, 64, 4, drop_last=True)
    with pytest.raises(DataError, match=r"BATCHSIZE_PER_REPLICA to 1,"):
        shuffled(1, 2, 1, drop_last=True)
    with pytest.raises(DataError, match="config.DISTRIBUTED.NUM_PROC_PER_NODE"):
        shuffled(3, 1, 4, drop_last=True)
    assert shuffled(100, 64, 4)[0].batch_sizes == [25]


@given(**SIZES)
def test_each_test_sample_exactly_once_and_in_order(
    num_samples: int, batch_size: int, world_size: int
) -> None:
    if num_samples < world_size:
        return
    samplers = [
        OrderedBatchSampler(num_samples, batch_size, rank, world_size) for rank in range(world_size)
    ]
    steps = global_batches(samplers)
    assert [each for step in steps for each in step] == list(range(num_samples))
    for sampler in samplers:
        assert sampler.global_batch_sizes == [len(step) for step in steps]
    sizes = [size for sampler in samplers for size in sampler.batch_sizes]
    assert len({len(sampler.batch_sizes) for sampler in samplers}) == 1
    assert max(sizes) - min(sizes) <= 1
    assert min(sizes) >= 1
    assert max(sizes) <= max(batch_size, 2)
    assert len(steps) <= -(-num_samples // (batch_size * world_size))


def test_fewer_test_samples_than_processes() -> None:
    with pytest.raises(DataError, match=r"config.DATA.TEST: 3 samples cannot be shared by 4"):
        OrderedBatchSampler(3, 2, 0, 4)


@given(**SIZES, epoch=st.integers(0, 5))
def test_shuffled_each_sample_counts_once_on_any_number_of_ranks(
    num_samples: int, batch_size: int, world_size: int, epoch: int
) -> None:
    if num_samples < world_size:
        return
    ranks = range(world_size)
    samplers = [
        ShuffledBatchSampler(num_samples, batch_size, rank, world_size, seed=3) for rank in ranks
    ]
    batches = global_batches(samplers, epoch)
    order = torch.randperm(num_samples, generator=epoch_generator(3, epoch)).tolist()
    assert [each for batch in batches for each in batch] == order
    assert [len(batch) for batch in batches] == samplers[0].global_batch_sizes
    sizes = [size for sampler in samplers for size in sampler.batch_sizes]
    assert 1 <= min(sizes) <= max(sizes) <= min(sizes) + 1


def test_shuffled_batches_are_those_of_one_rank_with_the_same_global_batch() -> None:
    two = [ShuffledBatchSampler(23, 4, rank, 2, seed=1) for rank in range(2)]
    assert global_batches(two, 2) == global_batches([ShuffledBatchSampler(23, 8, seed=1)], 2)
    (key, *_), *_ = two[0]
    assert key[0] == 2  # the epoch, from which a sample's augmentation is drawn
