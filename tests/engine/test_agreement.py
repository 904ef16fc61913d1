from __future__ import annotations

import time

import pytest

from sslengine.distributed.collectives import barrier
from sslengine.distributed.ranks import rank
from sslengine.engine.preemption import Agreement
from tests.ranks import RankPool


def test_one_process_ends_after_the_step_in_which_it_is_asked() -> None:
    stop = Agreement()
    assert not stop.reached(1)
    stop.ask()
    assert stop.reached(2)
    stop.close()


def _walk(asks: int, after: int, pause: float, steps: int) -> int:
    """Steps of this rank until it is told to end. Ranks pass the barrier together, but what
    they do between it and the next question takes each another time."""
    stop = Agreement()
    barrier()
    for step in range(1, steps + 1):
        if step > 1:
            barrier()
        time.sleep(pause * rank())
        if rank() == asks and step == after:
            stop.ask()
        if step < steps and stop.reached(step):
            stop.close()
            return step
    stop.close()
    return steps


@pytest.mark.parametrize(("asks", "pause"), [(0, 0.0), (1, 0.0), (0, 0.05), (1, 0.05)])
def test_all_ranks_end_at_the_same_step(two_ranks: RankPool, asks: int, pause: float) -> None:
    made = two_ranks.run(_walk, asks, 5, pause, 100_000)
    assert made[0] == made[1]
    assert made[0] >= 5


def _walk_in_lockstep_but_for_one_step(asks: int) -> int:
    """The slower rank is one step behind for long: the faster one has passed the barrier."""
    stop = Agreement()
    for step in range(1, 100_000):
        barrier()
        if rank() == 1:
            time.sleep(0.3)
        if rank() == asks and step == 3:
            stop.ask()
        if stop.reached(step):
            return step
    raise AssertionError("never told to end")


@pytest.mark.parametrize("asks", [0, 1])
def test_a_rank_that_is_a_step_ahead_waits(two_ranks: RankPool, asks: int) -> None:
    made = two_ranks.run(_walk_in_lockstep_but_for_one_step, asks)
    assert made[0] == made[1]


def test_four_ranks(four_ranks: RankPool) -> None:
    assert len(set(four_ranks.run(_walk, 2, 3, 0.01, 100_000))) == 1


def test_when_it_comes_too_late_the_run_ends_as_planned(two_ranks: RankPool) -> None:
    assert two_ranks.run(_walk, 0, 4, 0.0, 4) == [4, 4]
    # The group's store serves the next agreement as it did this one.
    made = two_ranks.run(_walk, 1, 2, 0.0, 100_000)
    assert made[0] == made[1]
