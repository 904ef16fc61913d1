"""The two passes of gradcache_train_step over the chunks of a batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from sslengine.distributed.data_parallel import broadcast_all, no_sync
from sslengine.errors import ConfigError
from sslengine.train_steps.stages import StepTask, reduce_gradients


def chunks_of(images: Any, size: int) -> Iterator[Tensor]:
    """In the order in which the model gives the outputs of crops."""
    if isinstance(images, Tensor):
        yield from images.split(size)
    elif isinstance(images, Sequence):
        for crops in images:
            yield from chunks_of(crops, size)
    else:
        raise ConfigError(
            f"config.TRAINER.TRAIN_STEP_NAME: a step in chunks takes one input, images or crops; "
            f"the batch has {', '.join(images)} (config.DATA.TRAIN.INPUT_KEY_NAMES)."
        )


def first_pass(task: StepTask, chunks: Sequence[Tensor]) -> tuple[list[Any], list[Any]]:
    """The output of each chunk, and the state of the random streams before it."""
    outputs, streams = [], []
    with task.perf.forward, torch.no_grad(), task.precision.autocast():
        if task.parts.exchange.broadcast_buffers_by_hand:
            broadcast_all(task.base_model.buffers())
        for images in chunks:
            streams.append(_streams(images))
            outputs.append(task.base_model(images))
    return outputs, streams


def joined(outputs: Sequence[Any]) -> tuple[list[Tensor], Any]:
    """All chunks' embeddings as leaves that take gradients; and in the model's own form."""
    form = tree_flatten(outputs[0])[1]
    parts = zip(*(tree_flatten(each)[0] for each in outputs), strict=True)
    leaves = [torch.cat(part).requires_grad_(part[0].is_floating_point()) for part in parts]
    return leaves, tree_unflatten(leaves, form)


def second_pass(
    task: StepTask,
    chunks: Sequence[Tensor],
    streams: Sequence[Any],
    gradients: Sequence[Tensor | None],
) -> None:
    """Ranks meet in the last chunk of the last batch of a group."""
    used = [index for index, gradient in enumerate(gradients) if gradient is not None]
    ranks_meet = task.group.last and not task.exchange.reduce_by_hand
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
    reduce_gradients(task)


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
