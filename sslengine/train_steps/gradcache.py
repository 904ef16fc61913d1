"""`gradcache_train_step`: the gradient of a loss over more images than fit into memory.

    each chunk of the batch forward, without graph     all embeddings
    the loss on all of them, backward                  its gradient by each embedding
    each chunk forward again, with graph, backward     from that gradient

It is the gradient of the whole batch, of which a contrastive loss needs every image: smaller
batches, or accumulated ones, would be another loss. Dropout and stochastic depth draw the
same numbers in both passes. Cost: one more forward. Memory: one chunk's graph, and all
embeddings. (Gao, Zhang, Han, Callan, "Scaling Deep Contrastive Learning Batch Size under
Memory Limited Setup", 2021.)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_flatten, tree_unflatten

from sslengine.distributed.data_parallel import (
    manual_gradient_all_reduce,
    manual_sync_params,
    no_sync,
)
from sslengine.errors import ConfigError
from sslengine.registry import register_train_step
from sslengine.train_steps import stages
from sslengine.train_steps.samples import single_input_sample
from sslengine.train_steps.standard import take_step

NAME = "gradcache_train_step"


@dataclass
class GradcacheOptions:
    # Images (views, crops) that go through the model at once.
    CHUNK_SIZE: int = 64
    # Batch norm in training mode normalises over a chunk: accept that.
    CHUNK_STATISTICS: bool = False

    def check(self) -> Iterator[str]:
        if self.CHUNK_SIZE < 1:
            yield f"CHUNK_SIZE: expected 1 or more, got {self.CHUNK_SIZE}."


@register_train_step(NAME, options=GradcacheOptions)
class GradcacheTrainStep:
    def __init__(self, options: GradcacheOptions) -> None:
        self.chunk_size = options.CHUNK_SIZE
        self.chunk_statistics = options.CHUNK_STATISTICS

    def __call__(self, task: stages.StepTask) -> stages.StepTask:
        if not task.train:  # no graph, nothing to save
            return take_step(task, single_input_sample)
        if not self.chunk_statistics:
            _refuse_batch_norm(task.base_model)
        with stages.step_timer(task):
            sample = stages.read_sample(task, single_input_sample)
            chunks = list(_chunks(sample["input"], self.chunk_size))
            outputs, streams = _first_pass(task, chunks)
            embeddings, output = _joined(outputs)
            output = stages.announce(task, output)  # fires on_forward
            with torch.enable_grad():
                loss = stages.compute_loss(task, output, sample)
            stages.reduce_loss(task, loss)
            stages.update_meters(task, output, sample)  # fires on_loss_and_meter
            with task.perf.backward:
                stages.backward_of_loss(task, loss)
                _second_pass(task, chunks, streams, [leaf.grad for leaf in embeddings])
            task.run_hooks("on_backward")
            stages.optimizer_step(task)  # by `where`; fires on_update
        return task


def _refuse_batch_norm(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm) and module.training:
            raise ConfigError(
                f"config.TRAINER.TRAIN_STEP_NAME: {NAME} cannot give the gradient of the whole "
                f"batch, for {name} is a batch norm in training mode, which needs all images at "
                f"once. Use a model without (a vision transformer), or freeze it; or accept the "
                f"statistics of each chunk: config.TRAINER.{NAME}.CHUNK_STATISTICS=true."
            )


def _chunks(images: Any, size: int) -> Iterator[Tensor]:
    """In the order in which the model gives the outputs of crops."""
    if isinstance(images, Tensor):
        yield from images.split(size)
    elif isinstance(images, Sequence):
        for crops in images:
            yield from _chunks(crops, size)
    else:
        raise ConfigError(
            f"config.TRAINER.TRAIN_STEP_NAME: {NAME} takes one input, images or crops; the batch "
            f"has {', '.join(images)} (config.DATA.TRAIN.INPUT_KEY_NAMES)."
        )


def _first_pass(task: stages.StepTask, chunks: Sequence[Tensor]) -> tuple[list[Any], list[Any]]:
    """The output of each chunk, and the state of the random streams before it."""
    outputs, streams = [], []
    with task.perf.forward, torch.no_grad(), task.precision.autocast():
        if task.reduce_by_hand:
            manual_sync_params(task.base_model, task.broadcast_buffers_by_hand)
        for images in chunks:
            streams.append(_streams(images))
            outputs.append(task.base_model(images))
    return outputs, streams


def _joined(outputs: Sequence[Any]) -> tuple[list[Tensor], Any]:
    """All chunks' embeddings as leaves that take gradients; and in the model's own form."""
    form = tree_flatten(outputs[0])[1]
    parts = zip(*(tree_flatten(each)[0] for each in outputs), strict=True)
    leaves = [torch.cat(part).requires_grad_(part[0].is_floating_point()) for part in parts]
    return leaves, tree_unflatten(leaves, form)


def _second_pass(
    task: stages.StepTask,
    chunks: Sequence[Tensor],
    streams: Sequence[Any],
    gradients: Sequence[Tensor | None],
) -> None:
    """Ranks meet in the last chunk of the last batch of a group."""
    used = [index for index, gradient in enumerate(gradients) if gradient is not None]
    ranks_meet = task.group.last and not task.reduce_by_hand
    place = 0
    with _as_before(task.base_model, chunks[0]):
        for number, images in enumerate(chunks):
            _set_streams(streams[number])
            alone = not (ranks_meet and number == len(chunks) - 1)
            with no_sync(task.model) if alone else nullcontext(), torch.enable_grad():
                with task.precision.autocast():
                    outputs = tree_flatten(task.model(images))[0]
                rows = slice(place, place + len(outputs[0]))
                torch.autograd.backward(
                    [outputs[index] for index in used],
                    [gradients[index][rows] for index in used],  # type: ignore[index]
                )
            place = rows.stop
    if task.reduce_by_hand and task.group.last:
        manual_gradient_all_reduce(task.base_model)


def _streams(images: Tensor) -> tuple[Tensor, Tensor | None]:
    on_gpu = images.device.type == "cuda"
    return torch.get_rng_state(), torch.cuda.get_rng_state(images.device) if on_gpu else None


def _set_streams(states: tuple[Tensor, Tensor | None]) -> None:
    torch.set_rng_state(states[0])
    if states[1] is not None:
        torch.cuda.set_rng_state(states[1])


@contextmanager
def _as_before(model: nn.Module, images: Tensor) -> Iterator[None]:
    """Random streams, and running statistics, move once a step: in the first pass."""
    streams = _streams(images)
    kept = [(buffer, buffer.clone()) for buffer in model.buffers()]
    try:
        yield
    finally:
        _set_streams(streams)
        with torch.no_grad():
            for buffer, value in kept:
                buffer.copy_(value)
