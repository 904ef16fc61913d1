from __future__ import annotations

import signal
import subprocess
import sys
import time
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from sslengine.checkpoint import files
from sslengine.checkpoint.options import CheckpointOptions
from sslengine.distributed.collectives import barrier
from sslengine.distributed.ranks import rank
from sslengine.engine import loop
from sslengine.engine.checkpointing import SaveCheckpoints
from sslengine.engine.preemption import SIGNALS, TOGETHER, Agreement, StopOnSignals
from sslengine.errors import Preempted
from sslengine.hooks.events import Hook
from tests.engine.runs import Watch, make_task, same, train, weights
from tests.engine.test_task import SUPERVISED, WITH_TEST
from tests.ranks import RankPool
from tests.tail import slow_but


class Scheduler(Hook):
    """Signals this process in mid-step."""

    def __init__(self, number: signal.Signals, step: int, train: bool = True, of: int = 0) -> None:
        self.number, self.step, self.train, self.rank = number, step, train, of
        self.steps = 0

    def on_forward(self, task: Any) -> None:
        self.steps += task.train == self.train
        if self.steps == self.step and rank() == self.rank and task.train == self.train:
            signal.raise_signal(self.number)  # not to another thread, which may run later


def _hooks(folder: Path) -> list[Any]:
    saves = SaveCheckpoints(folder, CheckpointOptions(CHECKPOINT_FREQUENCY=-1))
    return [saves, StopOnSignals(saves)]


def _stopped(folder: Path, *others: Hook, **changes: Any) -> str:
    with pytest.raises(Preempted) as told:
        train(folder, [*others, *_hooks(folder)], **changes)
    return str(told.value)


def _resumed(folder: Path, *others: Hook, **changes: Any) -> Any:
    task = make_task(folder, [*others, *_hooks(folder)], **changes)
    task.set_classy_state(files.newest(folder)[1]["classy_state_dict"])
    loop.run(task)
    return task


@pytest.mark.parametrize(
    ("number", "step"),  # the fourth is the last of its phase
    slow_but(zip(SIGNALS, (1, 3, 4), strict=True), product(SIGNALS, (1, 3, 4))),
)
def test_the_step_is_finished_and_the_run_goes_on_bit_by_bit(
    tmp_path: Path, number: signal.Signals, step: int
) -> None:
    whole = Watch()
    want = weights(train(tmp_path / "whole", [whole, *_hooks(tmp_path / "whole")]))
    first, second = Watch(), Watch()
    text = _stopped(tmp_path / "cut", Scheduler(number, step), first)
    assert text == (
        f"stopped by {number.name} after step {step}; saved in {tmp_path / 'cut'}. "
        f"The same command resumes from there."
    )
    assert len(first.losses) == step
    assert same(weights(_resumed(tmp_path / "cut", Scheduler(number, 0), second)), want)
    assert first.losses + second.losses == whole.losses
    assert first.samples + second.samples == whole.samples


def test_ctrl_c_too_and_it_is_answered(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGINT)
    saves, _ = _hooks(tmp_path)
    with pytest.raises(Preempted, match="stopped by SIGINT after step 3; saved in"):
        train(tmp_path, [Scheduler(signal.SIGINT, 3), saves, StopOnSignals(saves, True)])
    assert "the step is finished and the run is saved" in capfd.readouterr().err
    assert signal.getsignal(signal.SIGINT) is before


def test_a_group_of_accumulated_batches_is_finished(tmp_path: Path) -> None:
    changes = {"OPTIMIZER__accumulate": 2}
    want = weights(train(tmp_path / "whole", _hooks(tmp_path / "whole"), **changes))
    text = _stopped(tmp_path / "cut", Scheduler(signal.SIGTERM, 1), **changes)
    assert "after step 2" in text
    resumed = _resumed(tmp_path / "cut", Scheduler(signal.SIGTERM, 0), **changes)
    assert same(weights(resumed), want)


def test_in_a_test_phase_too(tmp_path: Path) -> None:
    changes = {**SUPERVISED, **WITH_TEST}
    whole = train(tmp_path / "whole", _hooks(tmp_path / "whole"), **changes)
    text = _stopped(tmp_path / "cut", Scheduler(signal.SIGTERM, 1, train=False), **changes)
    assert "after step 4" in text
    progress = files.newest(tmp_path / "cut")[1]["classy_state_dict"]["progress"]
    assert (progress["phase"], progress["step"]) == (1, 1)
    resumed = _resumed(tmp_path / "cut", Scheduler(signal.SIGTERM, 0), **changes)
    assert same(weights(resumed), weights(whole))
    assert resumed.phase_results == whole.phase_results  # of all of the last test phase


def test_in_the_last_step_the_run_just_ends(tmp_path: Path) -> None:
    task = train(tmp_path, [Scheduler(signal.SIGTERM, 8), *_hooks(tmp_path)])
    assert task.done_training()


def _cut_on_ranks(folder: Path, of: int) -> tuple[str, int]:
    """A signal may come to any rank. Here no main thread's handler is needed."""
    try:
        train(folder, [Scheduler(signal.SIGUSR1, 2, of=of), *_hooks(folder)], **LONG)
    except Preempted as told:
        state = files.newest(folder)[1]["classy_state_dict"]
        return str(told), state["progress"]["iteration"]
    raise AssertionError("it was not told to end")


LONG = {"OPTIMIZER__num_epochs": 400, "DISTRIBUTED__NUM_PROC_PER_NODE": 2}


@pytest.mark.parametrize("of", [0, 1])
def test_all_ranks_save_after_the_same_step(two_ranks: RankPool, tmp_path: Path, of: int) -> None:
    (text0, saved0), (text1, saved1) = two_ranks.run(_cut_on_ranks, tmp_path, of)
    assert saved0 == saved1
    assert f"stopped by SIGUSR1 after step {saved0};" in (text0, text1)[of]
    assert f"stopped by another rank after step {saved0};" in (text0, text1)[1 - of]


TWICE = """
import sys, time
from pathlib import Path
from tests.engine.test_preemption import Hook, _hooks, train

class Hang(Hook):
    def on_forward(self, task):
        print("in the step", flush=True)
        while not stop._first:
            time.sleep(0.01)
        print("told", flush=True)
        time.sleep(600)

folder = Path(sys.argv[1])
saves, stop = _hooks(folder)
train(folder, [Hang(), saves, stop])
"""


@pytest.mark.slow
def test_a_second_signal_ends_the_process_at_once(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", TWICE, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "in the step\n"
    for _ in range(2):  # together: the same one, passed on
        process.send_signal(signal.SIGTERM)
    assert process.stdout.readline() == "told\n"
    time.sleep(TOGETHER + 0.5)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=100) == -signal.SIGTERM
    process.stdout.close()
    assert not torch.distributed.is_initialized()


# ---- all ranks leave after the same step


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
