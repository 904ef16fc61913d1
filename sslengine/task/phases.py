"""The phases of a run, laid out before it starts.

A train phase covers a window of an epoch's batches: the whole epoch, or its share
with TRAIN_PHASES_PER_EPOCH, or the rest of `OPTIMIZER.num_iterations`.

With TEST_EVERY_NUM_ITERATIONS test phases come in between. The train phase is then laid out as
several `Phase`s, one up to each test, that share its number and its count of steps: the first
ends at step 4, say, and the next resumes from there, as it would after a restart.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from sslengine.errors import ConfigError
from sslengine.task.progress import Progress

# All phases of a run are laid out in memory.
MOST_PHASES = 1_000_000


@dataclass(frozen=True)
class Phase:
    index: int  # among all phases
    train: bool
    train_index: int  # among train phases; for a test phase, that of the one before it
    epoch: int
    first_step: int  # of the epoch's batches
    last_step: int  # exclusive
    begin: int = 0  # steps of its train phase that are made when it starts, before a test
    whole: int = 0  # steps of its train phase, if a test comes in between

    @property
    def steps(self) -> int:
        """`progress.step` when it is over."""
        return self.last_step - self.first_step

    @property
    def complete(self) -> bool:
        """False: a test comes in between, then the train phase continues."""
        return self.steps == (self.whole or self.steps)

    @property
    def own_steps(self) -> int:
        return self.steps - self.begin


@dataclass(frozen=True)
class Length:
    """How long to train: epochs or iterations, not both."""

    num_epochs: int | None
    num_iterations: int | None = None
    phases_per_epoch: int = 1

    def epochs(self, steps_per_epoch: int) -> float:
        if self.num_iterations is None:
            return float(self.num_epochs or 0)
        return self.num_iterations / steps_per_epoch


@dataclass(frozen=True)
class ByIteration:
    """Test phases by iterations: after every so many, at the end of a group of batches."""

    every: int = 0  # 0: not by iterations
    accumulate: int = 1

    def cuts(self, made: int, steps: int) -> list[int]:
        """The steps of a train phase after which to test; before it, `made` were made."""
        if not self.every:
            return []
        due = range(self.every - made % self.every, steps + 1, self.every)
        ends = (min(steps, math.ceil(step / self.accumulate) * self.accumulate) for step in due)
        return sorted(set(ends))


def plan_phases(
    length: Length,
    train_steps: int,
    test_steps: int = 0,
    test_every: int = 1,
    test_only: bool = False,
    by_iteration: ByIteration = ByIteration(),
) -> list[Phase]:
    """train_steps, test_steps: batches of one pass over each set; 0 test steps: no test phases."""
    if test_only:
        if not test_steps:
            raise ConfigError(
                "config.TEST_ONLY: there is nothing to test; set config.TEST_MODEL=true and "
                "config.DATA.TEST."
            )
        return [Phase(0, False, -1, 0, 0, test_steps)]
    windows = _train_windows(length, train_steps)
    phases: list[Phase] = []
    made = 0
    for train_index, (epoch, first, last) in enumerate(windows):
        steps, is_last = last - first, train_index == len(windows) - 1
        due = by_iteration.cuts(made, steps) if test_steps else []
        at_end = steps in due if by_iteration.every else train_index % test_every == 0
        begin = 0
        for end in [*(cut for cut in due if cut < steps), steps]:
            stretch = (epoch, first, first + end, begin, steps)
            phases.append(Phase(len(phases), True, train_index, *stretch))
            if test_steps and (end < steps or at_end or is_last):
                phases.append(Phase(len(phases), False, train_index, epoch, 0, test_steps))
            begin = end
        made += steps
    return phases


def _train_windows(length: Length, steps: int) -> list[tuple[int, int, int]]:
    parts = length.phases_per_epoch
    if parts > steps:
        raise ConfigError(
            f"config.DATA.TRAIN.TRAIN_PHASES_PER_EPOCH: {parts} phases cannot share an epoch of "
            f"{steps} steps."
        )
    left = length.num_iterations
    if left is None:
        left = (length.num_epochs or 0) * steps
    count = -(-left // steps) * parts
    if count > MOST_PHASES:
        key = "num_epochs" if length.num_iterations is None else "num_iterations"
        raise ConfigError(
            f"config.OPTIMIZER.{key}: {left} steps are {count} phases of this dataset; expected "
            f"at most {MOST_PHASES}. For a longer run make its epochs longer, with more data."
        )
    windows = []
    epoch = 0
    while left > 0:
        for part in range(parts):
            first, last = part * steps // parts, (part + 1) * steps // parts
            last = min(last, first + left)
            left -= last - first
            if last > first:
                windows.append((epoch, first, last))
        epoch += 1
    return windows


def next_phase(phases: list[Phase], phase: int, step: int) -> int:
    """The index of the phase to run: the current one, or the next if its steps are done."""
    done = phase < len(phases) and step >= phases[phase].steps
    return phase + 1 if done else phase


def place_again(phases: list[Phase], saved: Progress) -> Progress:
    """The progress of a checkpoint, with the place that it has among these phases.

    Phases have other numbers when the run is tested more often now, or no longer: what identifies
    the place is how many train steps were made. A test of another set is made from its start.
    """
    if not any(phase.train for phase in phases):  # TEST_ONLY
        return replace(saved, phase=0, step=0, stopped=0)
    if not saved.of:
        return saved
    made, ended = 0, Phase(-1, True, -1, 0, 0, 0)  # the train phase that was last completed
    following = Phase(len(phases), True, 0, 0, 0, 0)
    for phase in (phase for phase in phases if phase.train):
        if saved.iteration < made + phase.own_steps:
            following = phase
            break
        made, ended = made + phase.own_steps, phase
    ended_one = saved.testing or saved.step == saved.of
    if saved.iteration > made or not ended_one:  # within a train phase, or at the start of one
        step = following.begin + saved.iteration - made
        return replace(saved, phase=following.index, step=step)
    tests = phases[ended.index + 1 : following.index]
    if saved.testing and tests and tests[0].steps == saved.of:
        return replace(saved, phase=tests[0].index)
    return replace(saved, phase=ended.index, step=ended.steps)


def count_updates(phases: list[Phase], accumulate: int) -> int:
    """Optimizer steps of the whole run: the last group of a phase may be incomplete."""
    return sum(math.ceil(phase.own_steps / accumulate) for phase in phases if phase.train)
