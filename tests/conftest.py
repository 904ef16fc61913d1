"""Fixtures for all tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.ranks import RankPool

# Tests are many small computations, often in several processes: threads only get in the way.
torch.set_num_threads(1)


@pytest.fixture(scope="module")
def two_ranks() -> Iterator[RankPool]:
    with RankPool(2) as pool:
        yield pool


@pytest.fixture(scope="module")
def four_ranks() -> Iterator[RankPool]:
    with RankPool(4) as pool:
        yield pool
