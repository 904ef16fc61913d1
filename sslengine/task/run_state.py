"""The progress and results of a pass over data: all that a step changes.

A run has one `RunState`. A separate pass, such as the one that computes the loss of a whole set,
makes another one, and the run's state is not swapped. What no step changes is in `Parts`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from sslengine.data.options import SplitOptions
from sslengine.distributed.ranks import world_size
from sslengine.errors import DataError
from sslengine.hooks.events import Calls
from sslengine.hooks.profile import PerfStats
from sslengine.monitor.store import MetricStore
from sslengine.task.phases import Phase
from sslengine.task.progress import ALONE, Group, Progress, group_of


class Reading:
    """The batches of a stretch of an epoch, with the images that each has."""

    def __init__(
        self,
        feed: Any,
        keys: SplitOptions,
        epoch: int = 0,
        stretch: slice = slice(0, None),
        made: int = 0,
        accumulate: int = 1,
    ) -> None:
        """keys: whose INPUT_KEY_NAMES and TARGET_KEY_NAMES; made: steps of the stretch."""
        self.input_keys, self.target_keys = keys.INPUT_KEY_NAMES, keys.TARGET_KEY_NAMES
        self.sizes = feed.batch_sizes[stretch]
        self.global_sizes = feed.global_batch_sizes[stretch]
        self.accumulate = accumulate
        # Ranks may hold unequal shares of a batch; what they average is weighted by them then.
        ranks, shares = world_size(), zip(self.sizes, self.global_sizes, strict=True)
        uneven = any(ranks * size != of_all for size, of_all in shares)
        self._each_alone = accumulate == 1 and not uneven
        self.batches: Iterator[Any] = feed.batches(epoch, stretch.start + made, stretch.stop)

    def group(self, step: int) -> Group:
        """The place of this step among the batches of one optimizer step."""
        if self._each_alone:
            return ALONE
        steps = len(self.sizes)
        return group_of(step, steps, self.accumulate, self.sizes, self.global_sizes, world_size())


class LastBatch:
    """The step that is being made, for hooks to look at: `task.last_batch`, as in VISSL."""

    __slots__ = ("indices", "loss", "model_output", "sample", "share", "size", "target",
                 "vis_masks", "vis_preds")  # fmt: skip

    def __init__(self) -> None:
        self.sample: dict[str, Any] = {}
        self.model_output: Any = None
        self.target: Any = None
        self.loss: Tensor | None = None  # this rank's; means over ranks are in the ledger
        self.indices: Tensor | None = None  # of the samples, on the host
        # A model's further outputs (model_train_step), for hooks that draw.
        self.vis_preds: Any = None
        self.vis_masks: Any = None
        self.size = 0  # images of this step, over all ranks
        self.share = 1.0  # of them, on this rank

    def begin(self, sample: dict[str, Any]) -> None:
        self.sample, self.target = sample, sample["target"]
        self.indices = sample.get("data_idx")
        self.vis_preds = self.vis_masks = None

    def __str__(self) -> str:
        return ", ".join(f"{name} {shapes(each)}" for name, each in self.sample.items())


def shapes(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(shapes, value[:12]))}]"
    return str(tuple(getattr(value, "shape", ())))


@dataclass(eq=False)
class RunState:
    storage: MetricStore
    perf: PerfStats
    calls: Calls  # of hooks, then of services, by event
    phase: Phase  # the current one, or the next one; after the end, the last
    reading: Reading | None = None  # of the current phase
    train: bool = True
    progress: Progress = field(default_factory=Progress)
    group: Group = ALONE
    last_batch: LastBatch = field(default_factory=LastBatch)
    active_meters: Sequence[Any] = ()
    phase_results: dict[str, Any] = field(default_factory=dict)
    results: dict[str, dict[str, Any]] = field(default_factory=dict)  # of each split's last phase
    exception: BaseException | None = None

    def enter(self, index: int, phase: Phase) -> None:
        """This phase is next, or continues where a restart interrupted it."""
        progress = self.progress
        if index != progress.phase:
            progress.phase, progress.step = index, phase.begin
        progress.of, progress.testing = phase.steps, int(not phase.train)
        self.phase, self.train = phase, phase.train

    def read(self, reading: Reading, meters: Sequence[Any]) -> None:
        self.reading, self.active_meters = reading, meters

    def next_batch(self) -> Any:
        reading, step, last = self.reading, self.progress.step, self.last_batch
        assert reading is not None
        last.sample = {}
        with self.perf.data:
            batch = next(reading.batches, None)
        if batch is None:
            steps = len(reading.sizes)
            raise DataError(f"the loader ended after {step} of the {steps} batches of this phase.")
        last.size = of_all = reading.global_sizes[step]
        last.share = reading.sizes[step] / of_all
        return batch

    def begin_step(self) -> None:
        if self.train and self.reading is not None:
            self.group = self.reading.group(self.progress.step)

    def count_step(self) -> None:
        progress = self.progress
        if self.train:
            progress.iteration += 1
            progress.samples += self.last_batch.size
        progress.step += 1

    def count_update(self) -> None:
        self.progress.num_updates += 1

    def stop(self) -> None:
        """No phase follows the current one."""
        self.progress.stopped = 1

    def resume(self, progress: Progress, phase: Phase) -> None:
        self.progress, self.phase = progress, phase

    def recall(self, results: dict[str, dict[str, Any]]) -> None:
        """Those of the phases before the checkpoint that the run resumes from."""
        self.results |= results

    def end_phase(self, results: dict[str, Any]) -> None:
        self.phase_results = results

    def keep_results(self) -> None:
        self.results["train" if self.train else "test"] = self.phase_results

    def fail(self, error: BaseException) -> None:
        self.exception = error

    def beside(self, reading: Reading, calls: Calls) -> RunState:
        """For a separate test pass at this point of the run, with its own counts and metrics."""
        return RunState(
            MetricStore(active=False, check_finite=False), PerfStats(), calls, self.phase,
            reading=reading, train=False, progress=replace(self.progress, step=0),
        )  # fmt: skip
