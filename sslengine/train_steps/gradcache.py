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
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_flatten, tree_unflatten

from sslengine.distributed.data_parallel import no_sync
from sslengine.errors import ConfigError
from sslengine.registry import register_train_step
from sslengine.train_steps.samples import Sample
from sslengine.train_steps.step import Loss, TrainStep

if TYPE_CHECKING:
    from sslengine.task.task import SelfSupervisionTask

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
class GradcacheTrainStep(TrainStep):
    in_chunks = True  # the model does not see a batch at once

    def __init__(self, options: GradcacheOptions) -> None:
        self.size = options.CHUNK_SIZE
        self.chunk_statistics = options.CHUNK_STATISTICS

    def context(self, task: SelfSupervisionTask) -> AbstractContextManager[Any]:
        return torch.enable_grad() if task.state.train else super().context(task)

    def apply(self, task: SelfSupervisionTask, sample: Sample) -> Any:
        """Run the chunks without graph; the output is that of the whole batch, as leaves."""
        if not task.state.train:  # no graph, nothing to save
            return super().apply(task, sample)
        if not self.chunk_statistics:
            _refuse_batch_norm(task.parts.base_model)
        self._chunks, outputs, self._streams = list(chunks_of(sample["input"], self.size)), [], []
        with torch.no_grad():
            for images in self._chunks:
                self._streams.append(_streams(images))
                outputs.append(task.parts.base_model(images))
        self._leaves, output = joined(outputs)
        return output

    def differentiate(self, task: SelfSupervisionTask, loss: Loss) -> None:
        """Take the gradient by the embeddings, then run each chunk again, with its graph.

        Ranks meet in the last chunk of the last batch of a group.
        """
        super().differentiate(task, loss)
        gradients = [leaf.grad for leaf in self._leaves]
        used = [index for index, gradient in enumerate(gradients) if gradient is not None]
        parts, place = task.parts, 0
        ranks_meet = task.state.group.last and not parts.exchange.reduce_by_hand
        with _as_before(parts.base_model, self._chunks[0]):
            for number, images in enumerate(self._chunks):
                _set_streams(self._streams[number])
                alone = not (ranks_meet and number == len(self._chunks) - 1)
                with no_sync(parts.model) if alone else nullcontext(), torch.enable_grad():
                    with parts.precision.autocast():
                        outputs = tree_flatten(parts.model(images))[0]
                    rows = slice(place, place + len(outputs[0]))
                    torch.autograd.backward(
                        [outputs[index] for index in used],
                        [gradients[index][rows] for index in used],  # type: ignore[index]
                    )
                place = rows.stop
        self._chunks, self._streams, self._leaves = [], [], []


def _refuse_batch_norm(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm) and module.training:
            raise ConfigError(
                f"config.TRAINER.TRAIN_STEP_NAME: {NAME} cannot give the gradient of the whole "
                f"batch, for {name} is a batch norm in training mode, which needs all images at "
                f"once. Use a model without (a vision transformer), or freeze it; or accept the "
                f"statistics of each chunk: config.TRAINER.{NAME}.CHUNK_STATISTICS=true."
            )


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


def joined(outputs: Sequence[Any]) -> tuple[list[Tensor], Any]:
    """All chunks' embeddings as leaves that take gradients; and in the model's own form."""
    form = tree_flatten(outputs[0])[1]
    parts = zip(*(tree_flatten(each)[0] for each in outputs), strict=True)
    leaves = [torch.cat(part).requires_grad_(part[0].is_floating_point()) for part in parts]
    return leaves, tree_unflatten(leaves, form)


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
