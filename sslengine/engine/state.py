"""What a step changes: the progress and the results of a pass over data.

A run has one `RunState`. A separate pass, such as the one that computes the loss of a whole set,
makes another one, and the run's state is not swapped. What no step changes is in `Parts`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

from torch import Tensor

from sslengine.data.options import SplitOptions
from sslengine.distributed.ranks import world_size
from sslengine.engine.phases import Phase, Progress
from sslengine.errors import DataError
from sslengine.hooks.events import Calls, Hook
from sslengine.hooks.timing import PerfStats
from sslengine.monitor.store import MetricStore


@dataclass(frozen=True)
class Group:
    """The place of a step among the batches that make one optimizer step together."""

    first: bool  # gradients start from zero
    last: bool  # the optimizer steps
    weight: float  # this batch's share of the group's samples


ALONE = Group(first=True, last=True, weight=1.0)


def find_group(
    step: int, sizes: Sequence[int], global_sizes: Sequence[int], accumulate: int, ranks: int = 1
) -> Group:
    """Return the group of a step of a phase with batches of these sizes, on one rank and on all.

    A phase's last group may be shorter. Weights are by samples, so that the sum of the group's
    gradients, averaged over ranks, is the gradient of the mean over all its samples.
    """
    begin = step - step % accumulate
    end = min(begin + accumulate, len(sizes))
    total = sum(global_sizes[begin:end])
    return Group(step == begin, step == end - 1, ranks * sizes[step] / total)


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
        """Begin after `made` steps of the stretch; `keys` names the batches' inputs and targets."""
        self.input_keys, self.target_keys = keys.INPUT_KEY_NAMES, keys.TARGET_KEY_NAMES
        self.sizes = feed.batch_sizes[stretch]
        self.global_sizes = feed.global_batch_sizes[stretch]
        self.accumulate = accumulate
        # Ranks may hold unequal shares of a batch; what they average is weighted by them then.
        shares = zip(self.sizes, self.global_sizes, strict=True)
        even = all(world_size() * size == of_all for size, of_all in shares)
        self.alone = even and accumulate == 1
        self.batches: Iterator[Any] = feed.batches(epoch, stretch.start + made, stretch.stop)

    def group(self, step: int) -> Group:
        """Return the place of this step among the batches of one optimizer step."""
        return find_group(step, self.sizes, self.global_sizes, self.accumulate, world_size())


@dataclass(eq=False, slots=True)
class LastBatch:
    """The step that is being made, for hooks to look at: `task.last_batch`, as in VISSL."""

    sample: dict[str, Any] = field(default_factory=dict)
    model_output: Any = None
    target: Any = None
    loss: Tensor | None = None  # this rank's; means over ranks are in the store
    indices: Tensor | None = None  # of the samples, on the host
    # A model's further outputs (model_train_step), for hooks that draw.
    vis_preds: Any = None
    vis_masks: Any = None
    size: int = 0  # images of this step, over all ranks
    share: float = 1.0  # of them, on this rank

    def __str__(self) -> str:
        return ", ".join(f"{name} {shapes(each)}" for name, each in self.sample.items())


def shapes(value: Any) -> str:
    """Describe a tensor, or a list of them, by shapes."""
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
    steps: int = 0  # that this process has made, of all phases
    data_seconds: float = 0.0  # that its steps have waited for the loader
    dated: Sequence[Hook] = ()  # hooks and services that act at steps, when they are due
    dated_backward: Sequence[Hook] = ()  # those that act after backward

    def enter(self, index: int, phase: Phase) -> None:
        """Begin the next phase, or continue it where a restart interrupted it."""
        progress = self.progress
        if index != progress.phase:
            progress.phase, progress.step = index, phase.begin
        progress.of, progress.testing = phase.steps, int(not phase.train)
        self.phase, self.train = phase, phase.train

    def read(self, reading: Reading, meters: Sequence[Any]) -> None:
        self.reading, self.active_meters = reading, meters

    def begin_step(self) -> None:
        reading = self.reading
        if self.train and reading is not None:
            self.group = ALONE if reading.alone else reading.group(self.progress.step)

    def next_batch(self) -> Any:
        reading, step, last = self.reading, self.progress.step, self.last_batch
        assert reading is not None
        last.sample, last.vis_preds, last.vis_masks = {}, None, None
        began = perf_counter()
        batch = next(reading.batches, None)
        self.data_seconds += perf_counter() - began
        if batch is None:
            steps = len(reading.sizes)
            raise DataError(f"the loader ended after {step} of the {steps} batches of this phase.")
        last.size = of_all = reading.global_sizes[step]
        last.share = reading.sizes[step] / of_all
        return batch

    def count_step(self) -> None:
        progress = self.progress
        if self.train:
            progress.iteration += 1
            progress.samples += self.last_batch.size
        progress.step += 1
        self.steps += 1

    def count_update(self) -> None:
        self.progress.num_updates += 1

    def resume(self, progress: Progress, phase: Phase) -> None:
        self.progress, self.phase = progress, phase

    def recall(self, results: dict[str, dict[str, Any]]) -> None:
        """Take the results of the phases before the checkpoint that the run resumes from."""
        self.results |= results

    def stop(self) -> None:
        """Let no phase follow the current one."""
        self.progress.stopped = 1

    def fail(self, error: BaseException) -> None:
        self.exception = error

    def end_phase(self, results: dict[str, Any]) -> None:
        self.phase_results = results

    def keep_results(self) -> None:
        self.results["train" if self.train else "test"] = self.phase_results

    def beside(self, reading: Reading, calls: Calls) -> RunState:
        """Return the state of a separate test pass, with its own counts and metrics."""
        return RunState(
            MetricStore(active=False, check_finite=False), PerfStats(), calls, self.phase,
            reading=reading, train=False, progress=replace(self.progress, step=0),
        )  # fmt: skip
