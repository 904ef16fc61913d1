"""Hooks of test phases: batch norm statistics, the loss of a whole set, classes that are masked."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from sslengine.checkpoint.rng import rng_state, set_rng_state
from sslengine.distributed.collectives import sum_in_place
from sslengine.errors import ConfigError
from sslengine.hooks.events import Hook, Task
from sslengine.hooks.options import EvaluateLossOptions
from sslengine.meters.base import mask_absent, present_classes
from sslengine.precision import widest
from sslengine.registry import TRAIN_STEPS

log = logging.getLogger("sslengine")


class PreciseBatchNorm(Hook):
    """Compute batch norm statistics from the current weights: `HOOKS.PRECISE_BN`.

    The running averages of training come from earlier weights, and weigh the last batches most.
    Before each test phase and each checkpoint at the end of a train phase this hook replaces them
    with the mean and variance over NUM_ITERS training batches of all ranks together. (Wu and
    Johnson, "Rethinking 'Batch' in BatchNorm", 2021.) Cost: NUM_ITERS forwards each time.

    As in detectron2, training continues with the new averages. That changes no weight: in training
    a batch norm normalises by its batch. fvcore's function of this name refuses a layer that is
    called twice in a forward, as with multi-crop, so it is not used.
    """

    def __init__(self, batches: int) -> None:
        self.batches = batches

    def on_start(self, task: Task) -> None:
        step = task.config.TRAINER.TRAIN_STEP_NAME
        if getattr(TRAIN_STEPS.get(step), "model_gives_losses", False):
            raise ConfigError(
                f"config.HOOKS.PRECISE_BN.ENABLED: with {step} the model's forward also computes "
                f"its losses, which may change more than statistics. Set it to false."
            )
        if task.train_feed is not None and not _norms(task.base_model):
            log.warning(
                "config.HOOKS.PRECISE_BN.ENABLED has no effect: the model has no trained batch "
                "norm with running statistics."
            )

    def on_phase_end(self, task: Task) -> None:
        if task.train and self._due(task):
            refresh(task, self.batches)

    def _due(self, task: Task) -> bool:
        following = task.phases[task.progress.phase + 1 : task.progress.phase + 2]
        tested = any(not phase.train for phase in following)
        return tested or task.saves_at_phase_end


def refresh(task: Task, batches: int) -> None:
    """Overwrite the running statistics; restore random streams and all other state."""
    norms = _norms(task.base_model)
    if not norms:
        return
    sums = [Moments(norm) for norm in norms]
    with _nothing_else_moves(task.base_model), torch.no_grad():
        handles = [norm.register_forward_pre_hook(each.add) for norm, each in zip(norms, sums)]
        try:
            for inputs in _inputs(task, batches):
                with task.precision.autocast():
                    task.base_model(inputs)
        finally:
            for handle in handles:
                handle.remove()
    for norm, each in zip(norms, sums):
        each.write_to(norm)


def _norms(model: nn.Module) -> list[_BatchNorm]:
    """The batch norms whose statistics training updates, without those of frozen parts."""
    return [
        module
        for module in model.modules()
        if isinstance(module, _BatchNorm) and module.training and module.running_mean is not None
    ]


class Moments:
    """Sums over all inputs of a layer, for each channel, in double precision where there is it."""

    def __init__(self, norm: _BatchNorm) -> None:
        assert norm.running_mean is not None
        like = norm.running_mean.to(widest(norm.running_mean.device))
        self.total, self.squares = torch.zeros_like(like), torch.zeros_like(like)
        self.count = like.new_zeros(1)

    def add(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        values = inputs[0].float()
        others = [dim for dim in range(values.ndim) if dim != 1]
        variance, mean = torch.var_mean(values, others, correction=0)
        count = values.numel() // values.shape[1]
        mean, variance = mean.to(self.total), variance.to(self.total)
        self.total += count * mean
        self.squares += count * (variance + mean.square())
        self.count += count

    def write_to(self, norm: _BatchNorm) -> None:
        """Set the statistics over all ranks. Collective."""
        assert norm.running_mean is not None
        assert norm.running_var is not None
        total, squares, count = sum_in_place(
            torch.cat([self.total, self.squares, self.count])
        ).split([len(self.total), len(self.squares), 1])
        if count.item() == 0:  # no batch reached this layer: it keeps its statistics
            return
        mean = total / count
        norm.running_mean.copy_(mean)
        norm.running_var.copy_((squares / count - mean.square()).clamp(min=0))


@contextmanager
def _nothing_else_moves(model: nn.Module) -> Iterator[None]:
    """Restore random streams and buffers, which forwards in training mode change."""
    streams = rng_state()
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    try:
        yield
    finally:
        for buffer, before in buffers:
            buffer.copy_(before)
        set_rng_state(streams)


def _inputs(task: Task, batches: int) -> Iterator[Any]:
    """The model's inputs from so many training batches, in their own order and augmentation.

    They come from negative epoch numbers, which training does not use: the same ones at each
    phase, also in a resumed run. Between two train phases the loader has no position to lose.
    """
    feed = task.train_feed
    keys = list(task.config.DATA.TRAIN.INPUT_KEY_NAMES)
    nested = isinstance(task.last_batch.sample["input"], Mapping)
    rounds = -(-batches // feed.steps_per_epoch)
    for number in range(rounds):
        steps = min(feed.steps_per_epoch, batches - number * feed.steps_per_epoch)
        epoch = -1 - (task.phase.index * rounds + number)
        for batch in feed.batches(epoch, 0, steps):
            chosen = {key: batch[key][0] for key in keys}
            yield chosen if nested else chosen[keys[0]]


class EvaluateLoss(Hook):
    """Add the loss over a whole set to `task.phase_results`: `HOOKS.EVALUATE_LOSS`.

    Cost: a forward pass over the split each time. It changes nothing in the run.
    """

    def __init__(self, options: EvaluateLossOptions) -> None:
        self.sets = [name.upper() for name in options.SETS]
        self.every, self.at_end = options.EVERY, options.AT_END

    def on_start(self, task: Task) -> None:
        if "TRAIN" in self.sets and task.train_feed is None:
            raise ConfigError("config.HOOKS.EVALUATE_LOSS.SETS: this run only tests; name TEST.")

    def on_phase_end(self, task: Task) -> None:
        if not task.train or not task.phase.complete:
            return
        made = task.phase.train_index + 1
        last = made == 1 + max(phase.train_index for phase in task.phases)
        if (self.every > 0 and made % self.every == 0) or (last and self.at_end):
            task.phase_results["set_loss"] = {
                name.lower(): task.set_loss(name)["loss"] for name in self.sets
            }


class MaskAbsentClasses(Hook):
    """Never predict a class that no label of TEST has, in test phases: `METERS.model_output_mask`.

    Loss and meters get the masked output, as in VISSL.
    """

    def on_phase_start(self, task: Task) -> None:
        if not task.train:
            labels = map(present_classes, task.test_feed.dataset.labels)
            self._present = torch.cat([*labels])

    def on_forward(self, task: Task) -> None:
        if not task.train:
            batch = task.last_batch
            batch.model_output = mask_absent(batch.model_output, self._present)
