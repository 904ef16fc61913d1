"""Batches of a feed whose colours are made after collate.

In any number of workers and on any number of ranks: tests/data/test_determinism.py.
"""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch

from sslengine.data.batch.collators import Batch
from sslengine.data.feed import DataFeed
from sslengine.data.options import DataOptions, split_options
from sslengine.errors import ConfigError
from tests.data.augment.lists import LISTS, TENSOR


def feed(*, training: bool = True, backend: str = "device", **keys: Any) -> DataFeed:
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
        TRAIN=split_options(**split), NUM_DATALOADER_WORKERS=0, AUGMENT_BACKEND=backend
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


def test_batches_are_those_of_the_workers_back_end(expected: list[Batch]) -> None:
    made = list(feed().batches(1))
    assert made[0]["data"][0].dtype == torch.float32
    assert equal(made, expected)


def test_going_on_within_an_epoch(expected: list[Batch]) -> None:
    assert equal(list(feed().batches(1, 1, 3)), expected[1:3])


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
