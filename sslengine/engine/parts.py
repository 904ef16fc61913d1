"""What a run is made of, and how each part is made from the config.

Parts are made once, before the first step, and never replaced; what steps change is in `RunState`.
Nothing is written, no step is made, no weights are read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig
from torch import nn

from sslengine import startup
from sslengine.checkpoint.rng import seed_all
from sslengine.config.components import owns_network
from sslengine.config.options import DistributedOptions, RunOptions
from sslengine.config.sections import read
from sslengine.config.users_code import users_code
from sslengine.data.augment.transform import MakesLabel, TakesLabels
from sslengine.data.feed import DataFeed
from sslengine.data.options import DataOptions, SplitOptions
from sslengine.distributed.data_parallel import broadcast_all
from sslengine.distributed.ranks import rank, world_size
from sslengine.distributed.shard_files import Peers
from sslengine.distributed.sharding import is_sharded
from sslengine.engine import build
from sslengine.engine.phases import RunPlan
from sslengine.engine.services import Services, services_of
from sslengine.errors import DataError
from sslengine.hooks.default import default_hooks
from sslengine.hooks.events import expect_known_events
from sslengine.meters import MetersOptions
from sslengine.meters.base import build_meters
from sslengine.methods.base import callbacks
from sslengine.methods.foreign import takes_sample
from sslengine.methods.supervised import BinaryCrossEntropyLoss, CrossEntropyLoss
from sslengine.models.model import Model
from sslengine.models.parts import heads_of
from sslengine.models.view_trunk import ViewTrunk, compute_networks_in
from sslengine.optim.build import build_optimizer
from sslengine.optim.learner import expect_owners, learner_of
from sslengine.optim.options import OptimizerOptions
from sslengine.precision import Precision
from sslengine.registry import COLLATORS, TRANSFORMS, import_dotted

Callbacks = Sequence[Callable[[Any], None]]
# Makes a feed of (split, in random order?, the run's classes so far).
MakeFeed = Callable[[str, bool, Sequence[Any]], Any]


class Feeds:
    """The datasets of a run, and the classes that their labels are numbered by."""

    def __init__(
        self, make: MakeFeed, data: DataOptions, tested: bool, classes: Sequence[Any] | None
    ) -> None:
        """Make the feeds that the phases read: TEST if the run is tested.

        `classes`: TRAIN's, if they are known, of a run that only tests; of others None.
        """
        self._make, self._others = make, dict[str, Any]()
        self._options = {"TRAIN": data.TRAIN, "TEST": data.TEST}
        trains = classes is None
        # TRAIN's classes; in a run that only tests, without TRAIN's classes: TEST's.
        self.classes: list[Any] = list(classes or ())
        self.train = make("TRAIN", True, self.classes) if trains else None
        self.classes = self.classes or getattr(self.train, "classes", [])
        self.test = make("TEST", False, self.classes) if tested else None
        self.classes = self.classes or getattr(self.test, "classes", [])

    def options(self, split: str) -> SplitOptions:
        return self._options[split]

    @property
    def class_names(self) -> list[list[str]]:
        """List names by number, for each label source; empty where labels are numbers."""
        return [list(each.names) for each in self.classes]

    @property
    def main(self) -> Any:
        """Return the training set; in a run that only tests, the test set."""
        return self.choose(self.train is not None)

    def choose(self, train: bool) -> Any:
        feed = self.train if train else self.test
        assert feed is not None
        return feed

    def ordered(self, split: str) -> Any:
        """Return a feed of each sample once, as a test phase reads them."""
        if split == "TEST" and self.test is not None:
            return self.test
        if split not in self._others:
            self._others[split] = self._make(split, False, self.classes)
        return self._others[split]

    def close(self) -> None:
        """End the loader workers."""
        for feed in (self.train, self.test, *self._others.values()):
            if feed is not None:
                feed.close()


@dataclass(frozen=True, eq=False)
class RunParts:
    seed: int
    feeds: Feeds
    plan: RunPlan
    base_model: nn.Module
    model: nn.Module  # with the loss in DDP, if there is any; see data_parallel.wrap
    loss: nn.Module
    learner: nn.Module  # both: all that is trained, by name
    whole: bool  # does the method own its network?
    loss_takes_sample: bool
    before_phase: Callbacks  # of the method
    after_backward: Callbacks
    after_update: Callbacks
    train_step_function: Callable[[Any], Any]
    optimizer: Any
    precision: Precision
    reduction: build.Reduction
    compression: Any  # of the gradients that ranks exchange; None: none
    peers: Peers | None
    meters: list[Any]
    train_meters: list[Any]
    own_hooks: list[Any]  # those of the loss, and of a model that brings some
    hooks: list[Any]
    services: Services
    code: dict[str, str]  # of the user: the hash of each module, or the name of a part


@dataclass
class PartsOfConfig:
    """Makes the parts of a run. Each of the methods makes one, and may be overridden."""

    config: DictConfig
    run_dir: Path | None  # None: of a run that keeps no files
    device: torch.device
    # Replace those that the config requests; the method's hooks are always added.
    hooks: list[Any] | None = None
    services: Services | None = None

    def feed(self, split: str, training: bool, classes: Sequence[Any]) -> Any:
        run = read(self.config, RunOptions)
        return DataFeed(
            read(self.config, DataOptions), split, training=training, seed=run.SEED_VALUE,
            rank=rank(), world_size=world_size(), device=self.device,
            mp_method=run.MULTI_PROCESSING_METHOD, classes=classes,
        )  # fmt: skip

    def model(self) -> nn.Module:
        return build.build_base_model(self.config, self.device)

    def loss(self, feeds: Feeds, model: nn.Module) -> nn.Module:
        sizes = () if feeds.train is None else feeds.train.global_batch_sizes
        return build.build_loss(self.config, model, feeds.main.num_samples, self.device, sizes)

    def optimizer(self, learner: nn.Module, epochs: float) -> Any:
        return build_optimizer(learner, read(self.config, OptimizerOptions), self.device, epochs)

    def hooks_of_run(self) -> list[Any]:
        return default_hooks(self.config, self.run_dir) if self.hooks is None else self.hooks

    def services_of_run(self) -> Services:
        return self.services or services_of(self.config, self.run_dir)

    def compression(self) -> Any:
        """Make what compresses the gradients that ranks exchange; None: they are sent whole."""
        options = read(self.config, DistributedOptions)
        if options.GRADIENT_COMPRESSION == "none" or world_size() == 1:
            return None
        make = import_dotted("sslengine.contrib.compression:Compression")
        given = options.GRADIENT_COMPRESSION, options.POWERSGD_RANK, options.POWERSGD_START
        return make(*given)

    def code(self) -> dict[str, str]:
        return users_code(self.config)

    def make(self) -> RunParts:
        """Make all of them, in the order in which they need each other."""
        config, device = self.config, self.device
        run, meters = read(config, RunOptions), read(config, MetersOptions)
        startup.announce("reading data")
        classes = build.classes_of_train(config) if run.TEST_ONLY else None
        feeds = Feeds(self.feed, read(config, DataOptions), run.TEST_MODEL, classes)
        steps = [each.steps_per_epoch if each else 0 for each in (feeds.train, feeds.test)]
        plan = RunPlan(config, *steps)
        startup.announce("building the model")
        seed_all(run.SEED_VALUE)
        model = self.model()
        loss = self.loss(feeds, model)
        whole = owns_network(type(loss)) or any(isinstance(p, ViewTrunk) for p in loss.modules())
        for split, feed in (("TRAIN", feeds.train), ("TEST", feeds.test)):
            expect_labels_in_range(loss, model, feed, feeds.options(split), split)
        build.compile_model(config, model)
        build.attach(config, loss, model)
        if build.shards(config):
            build.shard_model(config, model, loss, device)
        learner = learner_of(model, loss)
        precision = build.build_run_precision(config, device)
        if whole:
            compute_networks_in(precision, loss)
        train_step = build.build_train_step(config)
        optimizer = self.choose_optimizer(train_step, learner, model, loss, plan.epochs)
        if not plan.test_only:
            expect_owners(learner, optimizer.param_groups)
        # The method starts as rank 0's, as the model does. Shares differ by rank.
        own = (*loss.parameters(), *loss.buffers())
        broadcast_all(each for each in own if not is_sharded(each))
        compression = self.compression()
        all_meters = build_meters(meters)
        own_hooks = [hook for part in (loss, model) for hook in getattr(part, "hooks", list)()]
        hooks = [*own_hooks, *self.hooks_of_run()]
        for each in hooks:
            expect_known_events(each)
        sharded = build.shards(config) or any(map(is_sharded, loss.buffers()))
        parts = RunParts(
            seed=run.SEED_VALUE, feeds=feeds, plan=plan,
            base_model=model, loss=loss,
            model=build.wrap_model(config, model, loss, device, compression),
            learner=learner, whole=whole, loss_takes_sample=takes_sample(loss),
            before_phase=callbacks(loss, "before_phase"),
            after_backward=callbacks(loss, "after_backward"),
            after_update=callbacks(loss, "after_update"),
            train_step_function=train_step, optimizer=optimizer, precision=precision,
            reduction=build.build_reduction(config, train_step), compression=compression,
            peers=Peers() if sharded else None,
            meters=all_meters, train_meters=all_meters if meters.enable_training_meter else [],
            own_hooks=own_hooks, hooks=hooks,
            services=self.services_of_run(), code=self.code(),
        )  # fmt: skip
        # From here on ranks draw differently (dropout), but always the same for one seed.
        seed_all(run.SEED_VALUE * 1_000_003 + rank() + 1)
        return parts

    def choose_optimizer(
        self, train_step: Any, learner: nn.Module, model: nn.Module, loss: nn.Module, epochs: float
    ) -> Any:
        """Make the optimizer, or the train step's own (several of them)."""
        if own := getattr(train_step, "build_optimizer", None):
            return own(self.config, model, loss, self.device, epochs)
        return self.optimizer(learner, epochs)


# ---- labels that the model has no outputs for: on a GPU they end a run without saying why


def expect_labels_in_range(
    loss: nn.Module, model: nn.Module, feed: Any, options: SplitOptions, split: str
) -> None:
    """Raise DataError for a class number beyond the outputs, or a row without an indicator.

    Labels that a transform or a collator of the user's makes are not known here.
    """
    outputs, where = _count_outputs(model), f"config.DATA.{split}"
    if not isinstance(feed, DataFeed) or not outputs or _are_changed(options):
        return
    one_class = isinstance(loss, (nn.CrossEntropyLoss, nn.NLLLoss, CrossEntropyLoss))
    if one_class and options.LABEL_TYPE == "sample_index" and feed.num_samples > outputs:
        raise DataError(
            f"{where}.LABEL_TYPE: sample_index numbers {feed.num_samples} images; "
            f"config.MODEL.HEAD.PARAMS has {outputs} outputs. Set {where}.LABEL_SOURCES?"
        )
    if options.LABEL_TYPE != "standard":
        return
    for number, column in enumerate(getattr(feed.dataset, "standard_labels", [])):
        if one_class and column.ndim == 1:
            bad = ((column < 0) | (column >= outputs)) & (column != _ignored(loss))
            expected = f"0 to {outputs - 1}, the outputs of config.MODEL.HEAD.PARAMS"
        elif isinstance(loss, BinaryCrossEntropyLoss) and column.ndim == 2:
            bad, expected = (abs(column) > 1).any(axis=1), "indicators 1, 0, or -1 for unknown"
        elif one_class and column.dtype.kind != "f":
            bad = np.ones(len(column), bool)
            expected = "one class (config.LOSS.name: bce_logits_multiple_output_single_target)"
        else:
            continue  # torch and the loss compare shapes
        rows = np.flatnonzero(bad)
        if rows.size:
            label, image = column[rows[0]], feed.dataset.name(int(rows[0]))
            names = feed.classes[number].names if number < len(feed.classes) else ()
            label = repr(names[label]) if names and column.ndim == 1 else label
            raise DataError(
                f"{where}.LABEL_SOURCES.{number}: the label {label} of {image} does not fit the "
                f"loss: expected {expected}. {rows.size} samples have such labels."
            )


def _count_outputs(model: nn.Module) -> int:
    """Return the outputs of the narrowest head, as far as linear layers show; 0: unknown."""
    widths = []
    for head in heads_of(model) if isinstance(model, Model) else ():
        linear = [each for each in head.modules() if isinstance(each, nn.Linear)]
        widths += [linear[-1].out_features] if linear else [0]
    return min(widths, default=0)


def _are_changed(options: SplitOptions) -> bool:
    makers = (TRANSFORMS.get(entry["name"]) for entry in options.TRANSFORMS)
    makes = any(
        isinstance(each, type) and issubclass(each, (MakesLabel, TakesLabels)) for each in makers
    )
    collator = COLLATORS.get(options.COLLATE_FUNCTION)
    return makes or not str(getattr(collator, "__module__", "")).startswith("sslengine.")


def _ignored(loss: Any) -> int:
    index = getattr(loss, "ignore_index", None)
    return int(loss.options.ignore_index if index is None else index)
