"""Batches of a feed whose colours are made after collate."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from sslengine.data.collators import Batch
from sslengine.data.feed import DataFeed
from sslengine.data.options import DataOptions, SplitOptions
from sslengine.errors import ConfigError
from tests.data.plan.lists import LISTS, TENSOR


def feed(
    workers: int = 0, *, training: bool = True, backend: str = "device", **keys: Any
) -> DataFeed:
    placing = {key: keys.pop(key) for key in ("rank", "world_size") if key in keys}
    split = {
        "DATA_SOURCES": ["synthetic"],
        "RANDOM_SYNTHETIC_IMAGES": True,
        "DEFAULT_GRAY_IMG_SIZE": 20,
        "DATA_LIMIT": 14,
        "LABEL_TYPE": "sample_index",
        "BATCHSIZE_PER_REPLICA": 4,
        "TRANSFORMS": LISTS["simclr"],
        "COLLATE_FUNCTION": "simclr_collator",
        **keys,
    }
    options = DataOptions(
        TRAIN=SplitOptions(**split), NUM_DATALOADER_WORKERS=workers, AUGMENT_BACKEND=backend
    )
    return DataFeed(options, "TRAIN", training=training, seed=3, **placing)


def equal(ours: list[Batch], theirs: list[Batch]) -> bool:
    return len(ours) == len(theirs) and all(
        torch.equal(one[key][0], other[key][0])
        for one, other in zip(ours, theirs, strict=True)
        for key in one
    )


@pytest.fixture(scope="module")
def expected() -> list[Batch]:
    """All in the worker, by the back-end that does the worker's part of `device` too."""
    return list(feed(backend="auto").batches(1))


@pytest.fixture(scope="module")
def three() -> Iterator[DataFeed]:
    shared = feed(3)
    yield shared
    shared.close()


def test_batches_are_those_of_the_workers_back_end(expected: list[Batch]) -> None:
    made = list(feed().batches(1))
    assert made[0]["data"][0].dtype == torch.float32
    assert equal(made, expected)


def test_the_number_of_workers_changes_nothing(expected: list[Batch], three: DataFeed) -> None:
    one = feed(1)
    assert equal(list(one.batches(1)), expected)
    assert equal(list(three.batches(1)), expected)
    one.close()


def test_going_on_within_an_epoch(expected: list[Batch], three: DataFeed) -> None:
    assert equal(list(three.batches(1, 2)), expected[2:])
    assert equal(list(feed().batches(1, 1, 3)), expected[1:3])


@pytest.mark.parametrize("world_size", [2, 4])
def test_ranks_share_the_batches_of_one_rank(expected: list[Batch], world_size: int) -> None:
    ranks = [
        feed(BATCHSIZE_PER_REPLICA=4 // world_size, rank=rank, world_size=world_size)
        for rank in range(world_size)
    ]
    steps = zip(*(each.batches(1) for each in ranks), strict=True)
    for whole, parts in zip(expected, steps, strict=True):
        count = len(whole["data_idx"][0]) // 2
        views = zip(*(part["data"][0].chunk(2) for part in parts), strict=True)
        shared = [torch.cat(shares)[:count] for shares in views]
        assert torch.equal(torch.cat(shared), whole["data"][0])


@pytest.mark.parametrize("world_size", [1, 2])
def test_evaluation(world_size: int) -> None:
    keys = {"TRANSFORMS": LISTS["evaluation"], "COLLATE_FUNCTION": "default_collate"}
    for rank in range(world_size):
        placed = {**keys, "training": False, "rank": rank, "world_size": world_size}
        assert equal(list(feed(**placed).batches()), list(feed(backend="auto", **placed).batches()))


def test_a_collator_that_makes_values_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"COLLATE_FUNCTION: cutmixup_collator may look at pixel"):
        feed(COLLATE_FUNCTION="cutmixup_collator")


def test_what_cannot_be_left_to_the_device_is_told(caplog: pytest.LogCaptureFixture) -> None:
    erased = {"TRANSFORMS": [*LISTS["simclr"], {"name": "RandomErasing"}]}
    with caplog.at_level(logging.WARNING):
        made = feed(**erased)
    assert "nothing is left to the device" in caplog.text
    assert equal(list(made.batches(1)), list(feed(backend="auto", **erased).batches(1)))


def test_without_a_gpu_another_back_end_is_proposed(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        feed(TRANSFORMS=[*LISTS["simclr"][:2], *TENSOR])
    assert "without a GPU" in caplog.text
