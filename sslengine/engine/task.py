"""The task: what a run is, under the names that VISSL's and Classy Vision's hooks know.

It has `config`, `parts`, made once (parts.py), and `state`, what steps change (state.py). loop.py
runs it; saving.py saves it.
"""

from __future__ import annotations

import copy
import logging
import shlex
import warnings
from collections.abc import Iterator
from contextlib import nullcontext
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig

from sslengine.config.sections import read
from sslengine.data.loading.dataset import SSLDataset
from sslengine.distributed.data_parallel import batch_norm_buffers, broadcast_all, expect_called
from sslengine.distributed.ranks import pick_device, world_size
from sslengine.engine import build
from sslengine.engine.parts import PartsOfConfig, RunParts
from sslengine.engine.passes import TrainFeatures, compute_features, set_loss
from sslengine.engine.saving import get_state, load_hooks_again, set_state
from sslengine.engine.services import Services
from sslengine.engine.state import Reading, RunState
from sslengine.errors import SSLEngineError, TrainingError
from sslengine.hooks.events import compile_events, take_dated
from sslengine.hooks.options import HooksOptions
from sslengine.hooks.timing import PerfStats
from sslengine.methods.step import Step
from sslengine.models.options import ModelOptions
from sslengine.models.sync_batchnorm import expect_several_rows
from sslengine.models.weights import AUTO
from sslengine.monitor.store import MetricStore, current, make_current
from sslengine.monitor.writers import Writer
from sslengine.optim.learner import expect_none_made_late, expect_owners
from sslengine.progress import progress
from sslengine.registry import register_task

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of the deprecated video transforms that it imports
    from classy_vision.tasks.classy_task import ClassyTask

log = logging.getLogger("sslengine")

COMPILING = "compiling the network (torch.compile), which can take minutes"


@register_task("self_supervision_task", "self_supervision_fsdp_task")
class SelfSupervisionTask(ClassyTask):  # type: ignore[misc]
    parts: RunParts  # both by `prepare`
    state: RunState
    # Can `sslengine replay` make it again from the folder of its run?
    replayable = True
    first_step = True  # that this process trains
    _first_of_phase = False
    _compiles = False  # will its next step compile the network?
    _hook_states: dict[str, Any] | None = None  # of the checkpoint from which it resumes

    def __init__(
        self,
        config: DictConfig,
        run_dir: Path,
        device: torch.device,
        writers: list[Writer] | None = None,
        hooks: list[Any] | None = None,
        services: Services | None = None,
    ) -> None:
        """Take hooks in place of those that the config requests; the method's are always added.

        Take services in place of the config's; `Services()` writes and saves nothing.
        """
        # Classy's own `__init__` makes an empty list of hooks: they are of the parts.
        self.config, self.run_dir, self.device = config, run_dir, device
        self.writers = writers or []
        self.made_by = PartsOfConfig(config, run_dir, device, hooks, services)
        self.method_step = Step(self)

    @classmethod
    def from_config(cls, config: Any) -> SelfSupervisionTask:
        """Make a task on the device and in the folder that the config names."""
        return cls(config, Path(config.CHECKPOINT.DIR), pick_device(config.MACHINE.DEVICE))

    # ---- making it

    def prepare(self, *_: Any, **__: Any) -> None:
        """Build everything. Nothing is written, no step is made, no weights are read."""
        self.parts = parts = self.made_by.make()
        check_finite = read(self.config, HooksOptions).CHECK_NAN
        self._compiles = read(self.config, ModelOptions).COMPILE.USE_COMPILE
        everyone = [*parts.hooks, *parts.services]
        calls = compile_events(everyone)
        replay = shlex.join(["sslengine", "replay", str(self.run_dir)]) if self.replayable else ""
        self.state = RunState(
            MetricStore(check_finite=check_finite, replay=replay, name=self.name_sample),
            PerfStats(), calls, parts.plan.phases[0],
            active_meters=parts.train_meters,
            dated=take_dated(calls, everyone, "on_step"),
            dated_backward=take_dated(calls, everyone, "on_backward"),
        )  # fmt: skip

    def load_initial_weights(self) -> None:
        """Load the weights that the config names, for a run that does not resume."""
        parts = self.parts
        names = parts.feeds.class_names
        build.load_initial_weights(self.config, parts.base_model, parts.loss, names)
        build.attach_again(self.config, parts.loss, parts.base_model)
        if not parts.plan.test_only:  # parts that the method has made again
            expect_owners(parts.learner, parts.optimizer.param_groups)

    # ---- running it

    def done_training(self) -> bool:
        return self.parts.plan.is_complete(self.state.progress)

    def start_phase(self) -> None:
        """Make the next phase ready, or the one that a restart interrupted."""
        parts, state = self.parts, self.state
        index = parts.plan.next(state.progress)
        phase = parts.plan.phases[index]
        state.enter(index, phase)
        parts.base_model.train(phase.train)
        parts.loss.train(phase.train)
        made = state.progress.step
        begins = made == phase.begin
        for meter in parts.meters if begins else ():
            meter.reset()
        state.storage.start_phase("train" if phase.train else "test", begins=begins)
        if phase.train:
            parts.optimizer.on_epoch(parts.plan.where_began(phase))
        else:
            self.same_statistics()
        for call in parts.before_phase if phase.train and made == 0 else ():
            call(self.method_step)
        feeds, stretch = parts.feeds, slice(phase.first_step, phase.last_step)
        split = feeds.options("TRAIN" if phase.train else "TEST")
        feed, accumulate = feeds.choose(phase.train), parts.plan.accumulate
        state.read(
            Reading(feed, split, phase.epoch, stretch, made, accumulate),
            parts.train_meters if phase.train else parts.meters,
        )
        if phase.train and state.reading is not None:
            expect_several_rows([parts.base_model, parts.loss], state.reading.sizes[made:])
        self._first_of_phase = True
        following = parts.plan.next_train_phase(phase) if phase.train else None
        if following is not None and hasattr(feed, "then"):
            begin = following.first_step + following.begin
            feed.then(following.epoch, begin, following.last_step)

    def steps_left(self) -> bool:
        return self.state.progress.step < self.state.phase.steps

    def step(self) -> None:
        """Make one step of the phase, of any kind, and count it."""
        state = self.state
        state.begin_step()
        if state.calls["on_step_start"]:
            self.run_hooks("on_step_start")
        try:
            with progress(COMPILING, at_once=True) if self._compiles else nullcontext():
                self.parts.train_step_function(self)
        except Exception as error:
            if not isinstance(error, SSLEngineError):
                log.error("%s, where the batch is %s", type(error).__name__, state.last_batch)
            raise
        self._compiles = False
        if state.train and (
            state.last_batch.loss is None or (state.group.last and not state.progress.num_updates)
        ):
            raise self._incomplete_step()
        if state.train and self._first_of_phase:
            self.first_step = self._first_of_phase = False
            parts = self.parts
            expect_called(parts.model)
            expect_none_made_late(parts.base_model, parts.loss, parts.optimizer.param_groups)
        state.count_step()
        if state.calls["on_step"]:
            self.run_hooks("on_step")
        for hook in state.dated:
            if state.steps >= hook.due:
                hook.on_step(self)

    train_step = eval_step = step

    def _incomplete_step(self) -> TrainingError:
        """Return the error of a step that would reach the end of the run untrained."""
        left_out = "recorded no loss: call TrainStep.record"
        if self.state.last_batch.loss is not None:
            left_out = "made no optimizer step: call TrainStep.update in train phases"
        name = self.config.TRAINER.TRAIN_STEP_NAME
        return TrainingError(f"config.TRAINER.TRAIN_STEP_NAME: {name} {left_out}.")

    def name_sample(self, index: int) -> str:
        """Return the file of a sample of this phase; its number, if its feed knows no files."""
        dataset = getattr(self.parts.feeds.choose(self.state.phase.train), "dataset", None)
        return dataset.name(index) if isinstance(dataset, SSLDataset) else str(index)

    def run_hooks(self, event: str) -> None:  # type: ignore[override]
        """Call all hooks, then the services."""
        for call in self.state.calls[event]:
            call(self)

    def on_start(self) -> None:
        make_current(self.state.storage)
        self.run_hooks("on_start")
        if self._hook_states is not None:
            load_hooks_again(self, self._hook_states)

    def on_phase_start(self) -> None:
        self.run_hooks("on_phase_start")

    def on_phase_end(self) -> None:
        """Reduce results over ranks, then call hooks: those of rank 0 alone only read them."""
        state = self.state
        mean = state.storage.phase_mean()
        measured = {meter.name: meter.value() for meter in state.active_meters}
        state.end_phase(({} if mean is None else {"loss": mean}) | measured)
        self.run_hooks("on_phase_end")
        state.keep_results()

    def on_end(self) -> None:
        self.run_hooks("on_end")
        self.close()

    def on_exception(self, error: BaseException) -> None:
        self.state.fail(error)
        for call in self.state.calls["on_exception"]:
            try:
                call(self)
            except Exception:  # all are called, also if one of them raises
                log.exception("a hook failed in on_exception for %s", type(error).__name__)
        self.close()

    def close(self) -> None:
        """End the loader workers."""
        if current() is self.state.storage:
            make_current(None)
        self.parts.feeds.close()

    # ---- separate passes

    def beside(self, reading: Reading) -> SelfSupervisionTask:
        """Make a task for a separate test pass: the same parts, the method's hooks, a new state."""
        other = copy.copy(self)
        other.state = self.state.beside(reading, compile_events(self.parts.own_hooks))
        other.method_step = Step(other)
        return other

    def set_loss(self, split: str) -> dict[str, float]:
        """Compute the mean loss over a whole set, with its parts. Collective."""
        feeds = self.parts.feeds
        return set_loss(self, feeds.ordered(split), feeds.options(split))

    def compute_features(self, images: int, network: str = AUTO) -> TrainFeatures:
        """Compute the features of some training images, as an evaluation does. Collective."""
        return compute_features(self, images, network)

    def unused_epoch(self) -> Iterator[dict[str, Any]]:
        """Yield samples of the training set in the order and with the crops of an epoch after the
        last. Not while a phase reads its batches: a feed gives one iteration at a time.
        """
        feeds = self.parts.feeds
        keys = feeds.options("TRAIN")
        inputs, targets = keys.INPUT_KEY_NAMES, keys.TARGET_KEY_NAMES
        for batch in feeds.choose(train=True).batches(self.parts.plan.phases[-1].epoch + 1):
            named = {key: values[0] for key, values in batch.items()}
            yield {**named, "input": named[inputs[0]], "target": named[targets[0]]}

    def same_statistics(self) -> None:
        """Give all ranks rank 0's running statistics, as a checkpoint has them, before a test.

        The last step changed each rank's, also where its forward pass began with rank 0's.
        """
        parts = self.parts
        if parts.reduction.broadcasts_buffers:
            broadcast_all((*parts.base_model.buffers(), *batch_norm_buffers(parts.loss)))

    # ---- saving it

    def get_classy_state(self, deep_copy: bool = False) -> dict[str, Any]:
        return get_state(self, deep_copy)

    def set_classy_state(self, state: dict[str, Any]) -> None:
        self._hook_states = set_state(self, state)

    # ---- what hooks ask of it

    def leave(self, who: str) -> None:
        """Save the run after this step and leave. Every rank must call it in the same step."""
        self.parts.services.leave(who)

    def stop(self) -> None:
        """End the run with the current phase: it is complete then. Every rank must call it."""
        self.state.stop()

    @property
    def saves_at_phase_end(self) -> bool:
        """Tell whether the end of this train phase brings a checkpoint."""
        return self.parts.services.saves_at_phase_end(self)

    @property
    def updating(self) -> bool:
        """Tell whether this step ends in an optimizer step; otherwise it only accumulates."""
        return self.state.group.last

    @property
    def where(self) -> float:
        """Return the share of optimizer steps made, in [0, 1) while there are any left."""
        return self.parts.plan.where(self.state.progress)

    @property
    def losses(self) -> list[float]:
        """Return loss times batch size of the steps of this phase. Waits for the device.

        With several ranks: of the steps up to the last record, since one rank may ask alone.
        """
        if world_size() == 1:
            self.state.storage.flush()
        return self.state.storage.phase_losses

    @property
    def checkpoint_folder(self) -> str:
        return str(self.run_dir / "checkpoints")

    # names of VISSL's and Classy Vision's hooks
    model = property(attrgetter("parts.model"))  # wrapped with the loss for data parallel training
    base_model = property(attrgetter("parts.base_model"))
    loss = property(attrgetter("parts.loss"))
    optimizer = property(attrgetter("parts.optimizer"))
    meters = property(attrgetter("parts.meters"))
    hooks = property(attrgetter("parts.hooks"))
    train = property(attrgetter("state.train"))
    last_batch = property(attrgetter("state.last_batch"))
    iteration = property(attrgetter("state.progress.iteration"))
    local_iteration_num = property(attrgetter("state.progress.step"))
    phase_idx = property(attrgetter("state.progress.phase"))
    train_phase_idx = property(attrgetter("state.phase.train_index"))
    num_updates = property(attrgetter("state.progress.num_updates"))
    perf_stats = property(attrgetter("state.perf"))

    # names of ours
    learner = property(attrgetter("parts.learner"))  # all that is trained; the loss's are `loss.*`
    precision = property(attrgetter("parts.precision"))
    services = property(attrgetter("parts.services"))
    peers = property(attrgetter("parts.peers"))
    seed = property(attrgetter("parts.seed"))
    phases = property(attrgetter("parts.plan.phases"))
    test_only = property(attrgetter("parts.plan.test_only"))
    train_feed = property(attrgetter("parts.feeds.train"))
    test_feed = property(attrgetter("parts.feeds.test"))
    class_names = property(attrgetter("parts.feeds.class_names"))
    storage = property(attrgetter("state.storage"))  # task.storage.put_scalar(name, value)
    perf = property(attrgetter("state.perf"))
    data_seconds = property(attrgetter("state.data_seconds"))  # that steps waited for batches
    progress = property(attrgetter("state.progress"))
    phase = property(attrgetter("state.phase"))
    phase_results = property(attrgetter("state.phase_results"))
    results = property(attrgetter("state.results"))
    exception = property(attrgetter("state.exception"))
