"""The test harness itself: a rank that raises or hangs fails the test, and only that test."""

from __future__ import annotations

import os
import threading
import time

import pytest

from sslengine.distributed.ranks import rank
from tests.ranks import RankPool


def _raise_on_1() -> None:
    if rank() == 1:
        raise ValueError("broken")


def _hang_on_1() -> None:
    if rank() == 1:
        time.sleep(600)


def test_a_rank_that_raises_fails_with_its_traceback_and_the_pool_goes_on() -> None:
    with RankPool(2) as pool:
        with pytest.raises(AssertionError, match=r"(?s)rank 1 of 2 failed.*ValueError: broken"):
            pool.run(_raise_on_1)
        assert pool.run(rank) == [0, 1]


def test_a_rank_that_hangs_is_killed() -> None:
    with (
        RankPool(2, timeout=2) as pool,
        pytest.raises(AssertionError, match=r"ranks \[1\] did not answer within 2 s"),
    ):
        pool.run(_hang_on_1)


def _end_soon() -> None:
    threading.Timer(0.2, os._exit, (1,)).start()


def test_a_rank_that_ends_between_two_calls_is_told_and_the_pool_starts_again() -> None:
    with RankPool(2) as pool:
        pool.run(_end_soon)
        for process in pool._processes:
            process.join()
        with pytest.raises(AssertionError, match="rank"):
            pool.run(rank)
        assert pool.run(rank) == [0, 1]
