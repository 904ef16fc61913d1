"""The phases of a run, laid out before it starts, and how far the run has come.

A train phase covers a window of an epoch's batches: the whole epoch, or its share with
TRAIN_PHASES_PER_EPOCH, or the rest of `OPTIMIZER.num_iterations`.

With TEST_EVERY_NUM_ITERATIONS test phases come in between. The train phase is then laid out as
several `Phase`s, one up to each test, that share its number and its count of steps: the first
ends at step 4, say, and the next resumes from there, as it would after a restart.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from typing import Any

from omegaconf import DictConfig

from sslengine.config.options import RunOptions
from sslengine.config.sections import read
from sslengine.data.options import DataOptions
from sslengine.errors import ConfigError
from sslengine.optim.options import OptimizerOptions

# All phases of a run are laid out in memory.
MOST_PHASES = 1_000_000


@dataclass
class Progress:
    """How far a run has come: a checkpoint holds these numbers."""

    phase: int = 0  # index of the current phase, or of the next one
    step: int = 0  # steps made in it
    of: int = 0  # steps that it has; 0 in checkpoints that did not note it
    testing: int = 0  # 1: it is a test phase
    iteration: int = 0  # train steps made
    samples: int = 0  # training samples seen, over all ranks
    num_updates: int = 0  # optimizer steps made
    stopped: int = 0  # 1: a hook has ended the run before its last phase

    def state_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Progress:
        return cls(**{each.name: int(state.get(each.name, 0)) for each in fields(cls)})


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

    @cached_property
    def steps(self) -> int:
        """Return `progress.step` at its end."""
        return self.last_step - self.first_step

    @property
    def complete(self) -> bool:
        """Tell whether the train phase ends with it; otherwise a test comes in between."""
        return self.steps == (self.whole or self.steps)

    @property
    def own_steps(self) -> int:
        return self.steps - self.begin


@dataclass(frozen=True)
class RunLength:
    """How long to train, and when to test."""

    num_epochs: int | None
    num_iterations: int | None = None  # takes the place of the epochs
    phases_per_epoch: int = 1
    test_every: int = 1  # train phases
    test_every_iterations: int = 0  # takes its place; tests come at the end of a group of batches
    accumulate: int = 1

    def epochs(self, steps_per_epoch: int) -> float:
        if self.num_iterations is None:
            return float(self.num_epochs or 0)
        return self.num_iterations / steps_per_epoch

    def tests_within(self, made: int, steps: int) -> list[int]:
        """Return the steps of a train phase after which to test; before it, `made` were made."""
        every, group = self.test_every_iterations, self.accumulate
        if not every:
            return []
        due = range(every - made % every, steps + 1, every)
        return sorted({min(steps, math.ceil(step / group) * group) for step in due})


class RunPlan:
    """All phases of a run, and the place of a `Progress` among them."""

    def __init__(self, config: DictConfig, train_steps: int, test_steps: int) -> None:
        """Lay out the phases of sets of so many batches; 0: the run has no such set."""
        run, optim = read(config, RunOptions), read(config, OptimizerOptions)
        length = RunLength(
            optim.num_epochs,
            optim.num_iterations,
            read(config, DataOptions).TRAIN.TRAIN_PHASES_PER_EPOCH,
            run.TEST_EVERY_NUM_EPOCH,
            run.TEST_EVERY_NUM_ITERATIONS,
            optim.accumulate,
        )
        self.test_only, self.accumulate = run.TEST_ONLY, optim.accumulate
        self.phases_per_epoch = length.phases_per_epoch
        self.epochs = length.epochs(train_steps or test_steps)
        if run.TEST_ONLY:
            self.phases = plan_test(test_steps)
        else:
            self.phases = plan_phases(length, train_steps, test_steps)
        self.total_updates = max(1, count_updates(self.phases, self.accumulate))

    def phase(self, progress: Progress) -> Phase:
        """Return the current phase; after the end, the last one."""
        return self.phases[min(progress.phase, len(self.phases) - 1)]

    def next(self, progress: Progress) -> int:
        """Return the index of the phase to run."""
        return next_phase(self.phases, progress.phase, progress.step)

    def next_train_phase(self, phase: Phase) -> Phase | None:
        """Return the first train phase after this one."""
        return next((each for each in self.phases[phase.index + 1 :] if each.train), None)

    def is_complete(self, progress: Progress) -> bool:
        return bool(progress.stopped) or self.next(progress) >= len(self.phases)

    def where(self, progress: Progress) -> float:
        """Return the share of optimizer steps made, in [0, 1) while there are any left."""
        return progress.num_updates / self.total_updates

    def where_began(self, phase: Phase) -> float:
        """Return `where` at the start of the train phase that this is a stretch of."""
        before = [each for each in self.phases if each.train_index < phase.train_index]
        return count_updates(before, self.accumulate) / self.total_updates


def plan_test(test_steps: int) -> list[Phase]:
    """Lay out a run that only tests."""
    if not test_steps:
        raise ConfigError("config.TEST_ONLY: set config.TEST_MODEL=true and config.DATA.TEST.")
    return [Phase(0, False, -1, 0, 0, test_steps)]


def plan_phases(length: RunLength, train_steps: int, test_steps: int = 0) -> list[Phase]:
    """Lay out phases over sets of so many batches; without test steps there are no test phases."""
    windows = _train_windows(length, train_steps)
    phases: list[Phase] = []
    made = 0
    for train_index, (epoch, first, last) in enumerate(windows):
        steps, is_last = last - first, train_index == len(windows) - 1
        within = length.tests_within(made, steps) if test_steps else []
        at_end = is_last or (
            steps in within
            if length.test_every_iterations
            else train_index % length.test_every == 0
        )
        begin = 0
        for end in [*(cut for cut in within if cut < steps), steps]:
            stretch = (epoch, first, first + end, begin, steps)
            phases.append(Phase(len(phases), True, train_index, *stretch))
            if test_steps and (end < steps or at_end):
                phases.append(Phase(len(phases), False, train_index, epoch, 0, test_steps))
            begin = end
        made += steps
    return phases


def _train_windows(length: RunLength, steps: int) -> list[tuple[int, int, int]]:
    """List epoch, first and last step of each train phase."""
    parts, left = length.phases_per_epoch, length.num_iterations
    if parts > steps:
        raise ConfigError(
            f"config.DATA.TRAIN.TRAIN_PHASES_PER_EPOCH: {parts} phases cannot share an epoch of "
            f"{steps} steps."
        )
    key = "num_epochs" if left is None else "num_iterations"
    if left is None:
        left = (length.num_epochs or 0) * steps
    epochs = -(-left // steps)
    if epochs * parts > MOST_PHASES:
        raise ConfigError(
            f"config.OPTIMIZER.{key}: {left} steps are {epochs * parts} phases of this dataset; "
            f"expected at most {MOST_PHASES}."
        )
    windows = []
    for epoch in range(epochs):
        end = min(steps, left - epoch * steps)
        for part in range(parts):
            first, last = part * steps // parts, min((part + 1) * steps // parts, end)
            if last > first:
                windows.append((epoch, first, last))
    return windows


def next_phase(phases: list[Phase], phase: int, step: int) -> int:
    """Return the index of the phase to run: the current one, or the next if its steps are done."""
    done = phase < len(phases) and step >= phases[phase].steps
    return phase + 1 if done else phase


def place_again(phases: list[Phase], saved: Progress) -> Progress:
    """Return the progress of a checkpoint with the place that it has among these phases.

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
    """Count the optimizer steps of the run: the last group of a phase may be incomplete."""
    return sum(math.ceil(phase.own_steps / accumulate) for phase in phases if phase.train)
