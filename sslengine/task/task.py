"""The task: what a run is.

It owns the model, loss, meters, optimizer with its schedules, precision, hooks and
progress, and hands them to the train step. Making them is build.py's business, saving
them state.py's, running them the trainer's.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig
from torch import nn

from sslengine import startup
from sslengine.checkpoint.rng import seed_all
from sslengine.config.options import DistributedOptions, RunOptions
from sslengine.config.sections import read
from sslengine.data.options import DataOptions, SplitOptions
from sslengine.distributed.data_parallel import batch_norm_buffers, broadcast_all
from sslengine.distributed.device import pick_device
from sslengine.distributed.ranks import rank, world_size
from sslengine.distributed.shard_files import Peers
from sslengine.distributed.sharding import is_sharded
from sslengine.errors import DataError
from sslengine.hooks.default import default_hooks
from sslengine.hooks.events import compile_events
from sslengine.hooks.options import HooksOptions
from sslengine.meters.base import build_meters
from sslengine.meters.options import MetersOptions
from sslengine.methods.base import verbs
from sslengine.methods.foreign import takes_sample
from sslengine.methods.step import Step
from sslengine.monitor.loss_ledger import LossLedger
from sslengine.monitor.perf import PerfStats
from sslengine.monitor.store import MetricStore, current, make_current
from sslengine.monitor.writers import Writer
from sslengine.optim.learner import learner_of, trains
from sslengine.optim.options import OptimizerOptions
from sslengine.optim.ownership import expect_owners
from sslengine.registry import register_task
from sslengine.services.order import Services, services_of
from sslengine.task import build
from sslengine.task.classy import ClassyTask
from sslengine.task.label_range import check_label_range
from sslengine.task.last_batch import LastBatch
from sslengine.task.phases import ByIteration, Length, Phase, count_updates, next_phase, plan_phases
from sslengine.task.progress import ALONE, Group, Progress, group_of
from sslengine.task.set_loss import set_loss
from sslengine.task.state import get_state, set_state

log = logging.getLogger("sslengine")


@register_task("self_supervision_task", "self_supervision_fsdp_task")
class SelfSupervisionTask(ClassyTask):  # type: ignore[misc]
    def __init__(
        self,
        config: DictConfig,
        run_dir: Path,
        device: torch.device,
        writers: list[Writer] | None = None,
        hooks: list[Any] | None = None,
        services: Services | None = None,
    ) -> None:
        """hooks: in place of those that the config asks for; the method's come in any case.

        services: in place of the config's; `Services()` writes and saves nothing.
        """
        super().__init__()
        self.config, self.run_dir, self.device = config, run_dir, device
        self.writers = writers or []
        self._given_hooks, self._given_services = hooks, services
        self.hooks: list[Any] = []
        self.progress = Progress()
        self.train = True
        self.group: Group = ALONE
        self.last_batch = LastBatch()
        self.exception: BaseException | None = None
        self.phase_results: dict[str, Any] = {}
        self.results: dict[str, dict[str, Any]] = {}  # of the last phase of each split
        self._batches: Iterator[Any] = iter(())
        self.method_step = Step(self)

    @classmethod
    def from_config(cls, config: Any) -> SelfSupervisionTask:
        """On the device and in the folder that the config names."""
        return cls(config, Path(config.CHECKPOINT.DIR), pick_device(config.MACHINE.DEVICE))

    # ---- making it

    def prepare(self, *_: Any, **__: Any) -> None:
        """Build everything. Nothing is written, no step is made, no weights are read."""
        config, device = self.config, self.device
        startup.tell("reading data")
        self._prepare_data()
        startup.mark("data")
        startup.tell("building the model")
        seed_all(self.seed)
        self.base_model = self._make_model()
        self.loss = self._make_loss()
        self.loss_takes_sample = takes_sample(self.loss)
        self.before_phase = verbs(self.loss, "before_phase")
        self.after_backward = verbs(self.loss, "after_backward")
        self.after_update = verbs(self.loss, "after_update")
        for train, feed in ((True, self.train_feed), (False, self.test_feed)):
            split = "TRAIN" if train else "TEST"
            check_label_range(self.loss, self.base_model, feed, self._splits[train], split)
        build.compile_model(config, self.base_model)
        build.attach(self.loss, self.base_model)
        self.sharded = build.in_shards(config)
        self.peers = Peers() if self.sharded or any(map(is_sharded, self.loss.buffers())) else None
        if self.sharded:
            build.shard_model(config, self.base_model, self.loss, device)
        self.learner = learner_of(self.base_model, self.loss)
        self.precision = build.build_run_precision(config, device)
        self.train_step_function = build.build_train_step(config)
        self.optimizer = self._make_optimizer(
            self.length.epochs(self._feed_for_training.steps_per_epoch)
        )
        if not self.test_only:
            expect_owners(self.learner, self.optimizer.param_groups)
        self._prepare_distributed()
        self._prepare_monitoring()
        self.hooks = self._make_hooks()
        self.services = self._given_services or self._make_services()
        timed = read(config, HooksOptions).ITERATION_TIMER
        everyone = [*self.hooks, *self.services]
        self._calls = compile_events(everyone, self.perf.hooks if timed else None)
        # From here on ranks draw differently (dropout), but always the same for one seed.
        seed_all(self.seed * 1_000_003 + rank() + 1)
        startup.mark("model")

    def _make_feed(self, split: str, training: bool) -> Any:
        return build.build_feed(self.config, split, self.device, training, self.classes)

    def _make_model(self) -> nn.Module:
        return build.build_base_model(self.config, self.device)

    def _make_loss(self) -> nn.Module:
        feed = self._feed_for_training
        sizes = () if self.train_feed is None else feed.global_batch_sizes
        return build.build_loss(self.config, feed.num_samples, self.device, sizes)

    def _make_optimizer(self, epochs: float) -> Any:
        """The train step's own, if it makes any (several of them)."""
        make = getattr(self.train_step_function, "build_optimizer", None)
        if make is not None:
            return make(self.config, self.base_model, self.loss, self.device, epochs)
        return build.build_run_optimizer(self.config, self.learner, self.device, epochs)

    def load_initial_weights(self) -> None:
        """For a run that does not go on from a checkpoint of its own."""
        build.load_initial_weights(self.config, self.base_model, self.class_names)
        build.attach_again(self.loss, self.base_model)
        if not self.test_only:  # parts that the method has made anew
            expect_owners(self.learner, self.optimizer.param_groups)

    def _prepare_data(self) -> None:
        config = self.config
        run, data = read(config, RunOptions), read(config, DataOptions)
        optim = read(config, OptimizerOptions)
        self.seed = run.SEED_VALUE
        self.test_only = run.TEST_ONLY
        self.accumulate = optim.accumulate
        self.length = Length(
            optim.num_epochs, optim.num_iterations, data.TRAIN.TRAIN_PHASES_PER_EPOCH
        )
        self._splits: dict[bool, SplitOptions] = {True: data.TRAIN, False: data.TEST}
        # Of the run: TRAIN's; of a run that only tests, and knows nothing of TRAIN, TEST's.
        self.classes: list[Any] = build.classes_of_train(config) if run.TEST_ONLY else []
        self.train_feed = None if run.TEST_ONLY else self._make_feed("TRAIN", training=True)
        self.classes = self.classes or getattr(self.train_feed, "classes", [])
        self.test_feed = self._make_feed("TEST", training=False) if run.TEST_MODEL else None
        self.classes = self.classes or getattr(self.test_feed, "classes", [])
        self._other_feeds: dict[str, Any] = {}
        self.phases = plan_phases(
            self.length,
            self.train_feed.steps_per_epoch if self.train_feed else 0,
            self.test_feed.steps_per_epoch if self.test_feed else 0,
            run.TEST_EVERY_NUM_EPOCH,
            run.TEST_ONLY,
            ByIteration(run.TEST_EVERY_NUM_ITERATIONS, self.accumulate),
        )
        self.total_updates = max(1, count_updates(self.phases, self.accumulate))

    @property
    def class_names(self) -> list[list[str]]:
        """By number, for each label source; empty where labels are numbers."""
        return [list(each.names) for each in self.classes]

    def _prepare_distributed(self) -> None:
        config, device = self.config, self.device
        self.reduce_by_hand = build.reduces_by_hand(config, self.train_step_function)
        # DDP is around the model alone: the method's gradients follow when its backward is done.
        self.reduced_by_hand = self._reduced_by_hand()
        mode = build.broadcast_mode(config)
        self.broadcasts_buffers = mode != "disabled"
        alone = self.reduce_by_hand or self.sharded  # nothing else sends buffers
        self.broadcast_buffers_by_hand = alone and mode == "forward_pass"
        self.broadcasts_before_eval = mode == "before_eval" or (
            self.sharded and mode == "forward_pass"
        )
        # DDP sends rank 0's weights of the model. It is not around the loss. Shards differ by rank.
        own = (*self.loss.parameters(), *self.loss.buffers())
        broadcast_all(each for each in own if not is_sharded(each))
        self.optimizer.prepare(self.precision, self.base_model)
        # As steps call it: wrapped for data parallel training, if there is any.
        self.compression = build.build_compression(config)
        self.model: nn.Module = build.wrap_model(config, self.base_model, device, self.compression)

    def _reduced_by_hand(self) -> nn.Module | None:
        if self.reduce_by_hand:
            return self.learner
        reduces = world_size() > 1 and not self.sharded and trains(self.loss)
        return self.loss if reduces else None

    def _prepare_monitoring(self) -> None:
        hooks, meters = read(self.config, HooksOptions), read(self.config, MetersOptions)
        period = read(self.config, DistributedOptions).GATHER_METRIC_PERIOD
        self.storage = MetricStore(check_finite=hooks.CHECK_NAN, period=period)
        on_gpu = self.device.type == "cuda"
        self.perf = PerfStats(measure_gpu=on_gpu and hooks.PERF_STATS.MONITOR_PERF_STATS)
        self.meters = build_meters(meters)
        self._train_meters = self.meters if meters.enable_training_meter else []
        self.active_meters = self._train_meters

    def _make_hooks(self) -> list[Any]:
        """Those of the loss, of a model that brings some, and of the config."""
        own: list[Any] = [
            hook for part in (self.loss, self.base_model) for hook in getattr(part, "hooks", list)()
        ]
        self.own_hooks = own
        given = self._given_hooks
        return [*own, *(self._config_hooks() if given is None else given)]

    def _config_hooks(self) -> list[Any]:
        return default_hooks(self.config, self.run_dir)

    def _make_services(self) -> Services:
        return services_of(self.config, self.run_dir)

    # ---- running it

    @property
    def phase(self) -> Phase:
        return self.phases[min(self.progress.phase, len(self.phases) - 1)]

    @property
    def where(self) -> float:
        """The share of optimizer steps made, in [0, 1) while there are any left."""
        return self.progress.num_updates / self.total_updates

    @property
    def updating(self) -> bool:
        """Does this step end in an optimizer step, or does it only accumulate?"""
        return self.group.last

    def done_training(self) -> bool:
        return self.is_complete(self.progress)

    def is_complete(self, progress: Progress) -> bool:
        ended = next_phase(self.phases, progress.phase, progress.step) >= len(self.phases)
        return bool(progress.stopped) or ended

    def start_phase(self) -> None:
        """Make the next phase ready, or the one that a restart interrupted."""
        progress = self.progress
        index = next_phase(self.phases, progress.phase, progress.step)
        if index != progress.phase:
            progress.phase, progress.step = index, self.phases[index].begin
        phase = self.phase
        self.train = phase.train
        progress.of, progress.testing = phase.steps, int(not phase.train)
        self.base_model.train(phase.train)
        self.loss.train(phase.train)
        self.active_meters = self._train_meters if phase.train else self.meters
        begins = progress.step == phase.begin
        if begins:
            for meter in self.meters:
                meter.reset()
        self.storage.start_phase("train" if phase.train else "test", anew=begins)
        if phase.train:
            self.optimizer.on_epoch(self._where_phase_began())
        else:
            self.same_statistics()
        split = self._splits[phase.train]
        self.input_keys, self.target_keys = split.INPUT_KEY_NAMES, split.TARGET_KEY_NAMES
        feed = self._feed
        self._sizes = feed.batch_sizes[phase.first_step : phase.last_step]
        self._global_sizes = feed.global_batch_sizes[phase.first_step : phase.last_step]
        # Ranks may hold unequal shares of a batch; what they average is weighted by them then.
        shares = zip(self._sizes, self._global_sizes, strict=True)
        self._uneven = any(world_size() * size != of_all for size, of_all in shares)
        for call in self.before_phase if phase.train and progress.step == 0 else ():
            call(self.method_step)
        self._batches = feed.batches(phase.epoch, phase.first_step + progress.step, phase.last_step)

    def unused_epoch(self) -> Iterator[dict[str, Any]]:
        """Samples of the training set in the order and with the crops of an epoch after the last.

        Not while a phase reads its batches: a feed gives one iteration at a time.
        """
        assert self.train_feed is not None
        for batch in self.train_feed.batches(self.phases[-1].epoch + 1):
            named = {key: values[0] for key, values in batch.items()}
            inputs, targets = self.input_keys, self.target_keys
            yield {**named, "input": named[inputs[0]], "target": named[targets[0]]}

    def same_statistics(self) -> None:
        """Before a test: rank 0's running statistics on all ranks, where steps do not see to it."""
        if self.broadcasts_before_eval:
            broadcast_all(self.base_model.buffers())
        if self.broadcasts_buffers:
            broadcast_all(batch_norm_buffers(self.loss))

    def _where_phase_began(self) -> float:
        before = [each for each in self.phases if each.train_index < self.phase.train_index]
        return count_updates(before, self.accumulate) / self.total_updates

    @property
    def _feed(self) -> Any:
        feed = self.train_feed if self.train else self.test_feed
        assert feed is not None
        return feed

    @property
    def _feed_for_training(self) -> Any:
        """The training set; in a run that only tests, the test set stands for it."""
        feed = self.train_feed or self.test_feed
        assert feed is not None
        return feed

    def steps_left(self) -> bool:
        return self.progress.step < self.phase.steps

    def next_batch(self) -> Any:
        step = self.progress.step
        with self.perf.data:
            batch = next(self._batches, None)
        if batch is None:
            raise DataError(
                f"the loader ended after {step} of the {self.phase.steps} batches of this phase."
            )
        size, of_all = self._sizes[step], self._global_sizes[step]
        self.last_batch.size, self.last_batch.share = of_all, size / of_all
        return batch

    def step(self) -> None:
        """One step of the phase, whatever it does, and its place in the count."""
        progress = self.progress
        if self.train and (self.accumulate > 1 or self._uneven):
            self.group = group_of(
                progress.step, self.phase.steps, self.accumulate,
                self._sizes, self._global_sizes, world_size(),
            )  # fmt: skip
        self.run_hooks("on_step_start")
        self.train_step_function(self)
        if self.train:
            progress.iteration += 1
            progress.samples += self.last_batch.size
        progress.step += 1
        self.run_hooks("on_step")

    train_step = eval_step = step

    def run_hooks(self, event: str) -> None:  # type: ignore[override]
        """All hooks, then the services."""
        for call in self._calls[event]:
            call(self)

    @property
    def saves_at_phase_end(self) -> bool:
        """Does the end of this train phase bring a checkpoint?"""
        return self.services.saves_at_phase_end(self)

    def leave(self, who: str) -> None:
        """Save the run after this step and leave. Every rank must call it in the same step."""
        self.services.leave(who)

    def set_loss(self, split: str) -> dict[str, float]:
        """The mean loss over all of a set, with its parts. Collective; nothing of the run moves."""
        feed = self.test_feed if split == "TEST" else None
        if feed is None and split not in self._other_feeds:
            self._other_feeds[split] = self._make_feed(split, training=False)
        return set_loss(self, feed or self._other_feeds[split], self._splits[split == "TRAIN"])

    def on_start(self) -> None:
        make_current(self.storage)
        self.run_hooks("on_start")

    def on_phase_start(self) -> None:
        self.run_hooks("on_phase_start")

    def on_phase_end(self) -> None:
        """Reductions over ranks come first: hooks of rank 0 alone only read the results."""
        mean = self.ledger.phase_mean()
        self.phase_results = {} if mean is None else {"loss": mean}
        self.phase_results |= {meter.name: meter.value() for meter in self.active_meters}
        self.run_hooks("on_phase_end")
        self.results["train" if self.train else "test"] = self.phase_results

    def on_end(self) -> None:
        self.run_hooks("on_end")
        self.close()

    def on_exception(self, error: BaseException) -> None:
        self.exception = error
        for call in self._calls["on_exception"]:
            try:
                call(self)
            except Exception:  # all are told, whatever one of them makes of it
                log.exception("a hook failed while it was told of %s", type(error).__name__)
        self.close()

    def close(self) -> None:
        """End the loader workers."""
        if current() is self.storage:
            make_current(None)
        for feed in (self.train_feed, self.test_feed, *self._other_feeds.values()):
            if feed is not None:
                feed.close()

    # ---- saving it

    def data_facts(self) -> dict[str, int]:
        """What must be the same for a step count to mean the same place in the data."""
        feed = self._feed_for_training
        facts = {
            "training samples": feed.num_samples,
            "steps per epoch": feed.steps_per_epoch,
            "OPTIMIZER.accumulate": self.accumulate,
            "SEED_VALUE": self.seed,
        }
        # Groups of batches end with a phase. Checkpoints of one phase an epoch know no such key.
        parts = self.length.phases_per_epoch
        return facts | ({"TRAIN_PHASES_PER_EPOCH": parts} if parts > 1 else {})

    def get_classy_state(self, deep_copy: bool = False) -> dict[str, Any]:
        return get_state(self, deep_copy)

    def set_classy_state(self, state: dict[str, Any]) -> None:
        set_state(self, state)

    # ---- names that VISSL's and Classy Vision's hooks read

    @property
    def iteration(self) -> int:
        return self.progress.iteration

    @property
    def local_iteration_num(self) -> int:
        return self.progress.step

    @property
    def phase_idx(self) -> int:
        return self.progress.phase

    @property
    def train_phase_idx(self) -> int:
        return self.phase.train_index

    @property
    def num_updates(self) -> int:
        return self.progress.num_updates

    @property
    def losses(self) -> list[float]:
        """Loss times batch size of every step of this phase. Waits for the device."""
        self.ledger.flush()
        return self.ledger.phase_losses

    @property
    def data_seconds(self) -> float:
        """That steps of this run have waited for the loader."""
        return self.perf.data.seconds

    @property
    def ledger(self) -> LossLedger:
        return self.storage.losses

    @property
    def perf_stats(self) -> PerfStats:
        return self.perf

    @property
    def checkpoint_folder(self) -> str:
        return str(self.run_dir / "checkpoints")
