"""Hooks of test phases: batch norm statistics, and classes that are masked."""

from __future__ import annotations

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
from sslengine.meters.base import mask_absent, present_classes
from sslengine.precision import widest
from sslengine.registry import TRAIN_STEPS


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
                f"config.HOOKS.PRECISE_BN.ENABLED: a forward of {step} changes more than those."
            )

    def on_phase_end(self, task: Task) -> None:
        following = task.phases[task.progress.phase + 1 : task.progress.phase + 2]
        tested = any(not phase.train for phase in following)
        if task.train and (tested or task.saves_at_phase_end):
            refresh(task, self.batches)


def refresh(task: Task, batches: int) -> None:
    """Overwrite the running statistics; restore random streams and all other state. Collective."""
    norms = find_norms(task.base_model)
    sums: dict[Any, Tensor] = {}  # of values, of their squares, and their number
    for norm in norms:
        mean = norm.running_mean
        sums[norm] = mean.new_zeros(2 * len(mean) + 1, dtype=widest(mean.device))

    def add(norm: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        values = inputs[0].float()
        others = [dim for dim in range(values.ndim) if dim != 1]
        variance, mean = (
            each.to(sums[norm]) for each in torch.var_mean(values, others, correction=0)
        )
        count = values.numel() // values.shape[1]
        sums[norm] += count * torch.cat([mean, variance + mean.square(), mean.new_ones(1)])

    handles = [norm.register_forward_pre_hook(add) for norm in norms]
    try:
        with _restored(task.base_model), torch.no_grad():
            for inputs in _read_inputs(task, batches) if norms else ():
                with task.precision.autocast():
                    task.base_model(inputs)
    finally:
        for handle in handles:
            handle.remove()
    for norm in norms:
        width = len(sums[norm]) // 2
        total, squares, count = sum_in_place(sums[norm]).split([width, width, 1])
        if count.item():  # otherwise no batch reached this layer: it keeps its statistics
            mean = total / count
            norm.running_mean.copy_(mean)
            norm.running_var.copy_((squares / count - mean.square()).clamp(min=0))


def find_norms(model: nn.Module) -> list[Any]:
    """List the batch norms whose statistics training updates, without those of frozen parts."""
    return [
        module
        for module in model.modules()
        if isinstance(module, _BatchNorm) and module.training and module.running_mean is not None
    ]


@contextmanager
def _restored(model: nn.Module) -> Iterator[None]:
    """Restore random streams and buffers, which forwards in training mode change."""
    streams = rng_state()
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    try:
        yield
    finally:
        for buffer, before in buffers:
            buffer.copy_(before)
        set_rng_state(streams)


def _read_inputs(task: Task, batches: int) -> Iterator[Any]:
    """Yield the model's inputs from training batches, in their own order and augmentation.

    They come from negative epoch numbers, which training does not use: the same ones at each
    phase, also in a resumed run. Between two train phases the loader has no position to lose.
    """
    feed = task.train_feed
    keys = list(task.config.DATA.TRAIN.INPUT_KEY_NAMES)
    nested = isinstance(task.last_batch.sample["input"], Mapping)
    rounds = -(-batches // feed.steps_per_epoch)
    for number in range(rounds):
        steps = min(feed.steps_per_epoch, batches - number * feed.steps_per_epoch)
        for batch in feed.batches(-1 - (task.phase.index * rounds + number), 0, steps):
            chosen = {key: batch[key][0] for key in keys}
            yield chosen if nested else chosen[keys[0]]


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
