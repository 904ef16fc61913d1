"""From a config to the parts of its run. Each method makes one part, and may be overridden.

Nothing is written, no step is made, no weights are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig
from torch import nn

from sslengine import startup
from sslengine.checkpoint.rng import seed_all
from sslengine.config.options import RunOptions
from sslengine.config.sections import read
from sslengine.config.users_code import users_code
from sslengine.data.options import DataOptions
from sslengine.distributed.data_parallel import broadcast_all
from sslengine.distributed.ranks import rank, world_size
from sslengine.distributed.shard_files import Peers
from sslengine.distributed.sharding import is_sharded
from sslengine.hooks.default import default_hooks
from sslengine.hooks.known_events import expect_known_events
from sslengine.meters.base import build_meters
from sslengine.meters.options import MetersOptions
from sslengine.methods.base import callbacks
from sslengine.methods.foreign import takes_sample
from sslengine.optim.learner import learner_of, trains
from sslengine.optim.ownership import expect_owners
from sslengine.services.order import Services, services_of
from sslengine.task import build
from sslengine.task.feeds import Feeds
from sslengine.task.label_range import expect_labels_in_range
from sslengine.task.parts import Exchange, Parts
from sslengine.task.plan import Plan


@dataclass
class PartsOfConfig:
    config: DictConfig
    run_dir: Path | None  # None: of a run that keeps no files
    device: torch.device
    # Replace those that the config requests; the method's hooks are always added.
    hooks: list[Any] | None = None
    services: Services | None = None

    # ---- one part each

    def feed(self, split: str, training: bool, classes: Sequence[Any]) -> Any:
        return build.build_feed(self.config, split, self.device, training, classes)

    def model(self) -> nn.Module:
        return build.build_base_model(self.config, self.device)

    def loss(self, feeds: Feeds) -> nn.Module:
        sizes = () if feeds.train is None else feeds.train.global_batch_sizes
        num_samples = feeds.for_training.num_samples
        return build.build_loss(self.config, num_samples, self.device, sizes)

    def optimizer(self, learner: nn.Module, epochs: float) -> Any:
        return build.build_run_optimizer(self.config, learner, self.device, epochs)

    def hooks_of_run(self) -> list[Any]:
        return default_hooks(self.config, self.run_dir) if self.hooks is None else self.hooks

    def services_of_run(self) -> Services:
        return self.services or services_of(self.config, self.run_dir)

    def code(self) -> dict[str, str]:
        return users_code(self.config)

    # ---- all of them

    def make(self) -> Parts:
        config, device = self.config, self.device
        seed = read(config, RunOptions).SEED_VALUE
        startup.announce("reading data")
        feeds = self._feeds()
        plan = self._plan(feeds)
        startup.announce("building the model")
        seed_all(seed)
        model, loss = self._networks(feeds)
        learner = learner_of(model, loss)
        sharded = build.in_shards(config)
        precision = build.build_run_precision(config, device)
        train_step = build.build_train_step(config)
        optimizer = self._optimizer(train_step, learner, model, loss, plan)
        exchange = self._exchange(train_step, learner, loss)
        _start_alike(loss)
        compression = build.build_compression(config)
        meters = read(config, MetersOptions)
        all_meters = build_meters(meters)
        own_hooks = [hook for part in (loss, model) for hook in getattr(part, "hooks", list)()]
        hooks = [*own_hooks, *self.hooks_of_run()]
        for each in hooks:
            expect_known_events(each)
        parts = Parts(
            seed=seed, feeds=feeds, plan=plan,
            base_model=model, model=build.wrap_model(config, model, device, compression),
            loss=loss, learner=learner, loss_takes_sample=takes_sample(loss),
            before_phase=callbacks(loss, "before_phase"),
            after_backward=callbacks(loss, "after_backward"),
            after_update=callbacks(loss, "after_update"),
            train_step_function=train_step, optimizer=optimizer, precision=precision,
            exchange=exchange, compression=compression,
            peers=Peers() if sharded or any(map(is_sharded, loss.buffers())) else None,
            meters=all_meters, train_meters=all_meters if meters.enable_training_meter else [],
            own_hooks=own_hooks, hooks=hooks,
            services=self.services_of_run(), code=self.code(),
        )  # fmt: skip
        # From here on ranks draw differently (dropout), but always the same for one seed.
        seed_all(seed * 1_000_003 + rank() + 1)
        return parts

    def _feeds(self) -> Feeds:
        run, data = read(self.config, RunOptions), read(self.config, DataOptions)
        classes = build.classes_of_train(self.config) if run.TEST_ONLY else None
        return Feeds(self.feed, data, run.TEST_MODEL, classes)

    def _plan(self, feeds: Feeds) -> Plan:
        train, test = (each.steps_per_epoch if each else 0 for each in (feeds.train, feeds.test))
        return Plan(self.config, train, test)

    def _networks(self, feeds: Feeds) -> tuple[nn.Module, nn.Module]:
        """Model and method, which know each other, sharded if they are to be."""
        model = self.model()
        loss = self.loss(feeds)
        for split, feed in (("TRAIN", feeds.train), ("TEST", feeds.test)):
            expect_labels_in_range(loss, model, feed, feeds.options(split), split)
        build.compile_model(self.config, model)
        build.attach(self.config, loss, model)
        if build.in_shards(self.config):
            build.shard_model(self.config, model, loss, self.device)
        return model, loss

    def _optimizer(
        self, train_step: Any, learner: nn.Module, model: nn.Module, loss: nn.Module, plan: Plan
    ) -> Any:
        """The train step's own, if it makes any (several of them)."""
        own = getattr(train_step, "build_optimizer", None)
        made = (
            self.optimizer(learner, plan.epochs)
            if own is None
            else own(self.config, model, loss, self.device, plan.epochs)
        )
        if not plan.test_only:
            expect_owners(learner, made.param_groups)
        return made

    def _exchange(self, train_step: Any, learner: nn.Module, loss: nn.Module) -> Exchange:
        sharded = build.in_shards(self.config)
        by_hand = build.reduces_by_hand(self.config, train_step)
        # DDP is around the model alone: the method's gradients follow when its backward is done.
        own = world_size() > 1 and not sharded and trains(loss)
        mode = build.broadcast_mode(self.config)
        return Exchange(
            reduce_by_hand=by_hand,
            reduced_by_hand=learner if by_hand else loss if own else None,
            broadcasts_buffers=mode != "disabled",
            # Where DDP is not there to send them.
            broadcast_buffers_by_hand=mode == "forward_pass" and (by_hand or sharded),
        )


def _start_alike(loss: nn.Module) -> None:
    """Rank 0's weights: DDP sends those of the model, and is not around the loss.

    Shards differ by rank.
    """
    own = (*loss.parameters(), *loss.buffers())
    broadcast_all(each for each in own if not is_sharded(each))
