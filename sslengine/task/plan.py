"""The plan of a run: its phases, and how far into it a `Progress` is."""

from __future__ import annotations

from itertools import islice

from omegaconf import DictConfig

from sslengine.config.options import RunOptions
from sslengine.config.sections import read
from sslengine.data.options import DataOptions
from sslengine.optim.options import OptimizerOptions
from sslengine.task.phases import ByIteration, Length, Phase, count_updates, next_phase, plan_phases
from sslengine.task.progress import Progress


class Plan:
    def __init__(self, config: DictConfig, train_steps: int, test_steps: int) -> None:
        """train_steps, test_steps: of one pass over each set; 0: the run has no such set."""
        run, optim = read(config, RunOptions), read(config, OptimizerOptions)
        parts = read(config, DataOptions).TRAIN.TRAIN_PHASES_PER_EPOCH
        self.test_only = run.TEST_ONLY
        self.accumulate = optim.accumulate
        self.phases_per_epoch = parts
        length = Length(optim.num_epochs, optim.num_iterations, parts)
        self.epochs = length.epochs(train_steps or test_steps)
        self.phases = plan_phases(
            length,
            train_steps,
            test_steps,
            run.TEST_EVERY_NUM_EPOCH,
            run.TEST_ONLY,
            ByIteration(run.TEST_EVERY_NUM_ITERATIONS, self.accumulate),
        )
        self.total_updates = max(1, count_updates(self.phases, self.accumulate))

    def phase(self, progress: Progress) -> Phase:
        """The current one; after the end, the last."""
        return self.phases[min(progress.phase, len(self.phases) - 1)]

    def next(self, progress: Progress) -> int:
        """The index of the phase to run."""
        return next_phase(self.phases, progress.phase, progress.step)

    def next_train_phase(self, phase: Phase) -> Phase | None:
        """The one after this phase."""
        after = islice(self.phases, phase.index + 1, None)
        return next((each for each in after if each.train), None)

    def is_complete(self, progress: Progress) -> bool:
        return bool(progress.stopped) or self.next(progress) >= len(self.phases)

    def where(self, progress: Progress) -> float:
        """The share of optimizer steps made, in [0, 1) while there are any left."""
        return progress.num_updates / self.total_updates

    def where_began(self, phase: Phase) -> float:
        """`where` at the start of the train phase that this is a stretch of."""
        before = [each for each in self.phases if each.train_index < phase.train_index]
        return count_updates(before, self.accumulate) / self.total_updates
