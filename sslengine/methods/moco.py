"""MoCo v2: find the other view of an image among a queue of views of other images.

He et al., Momentum Contrast for Unsupervised Visual Representation Learning, 2020,
equation 1; v2 (Chen et al., 2020) is its head, augmentation and temperature:

    l_q = -log( exp(q k / T) / (exp(q k / T) + sum_i exp(q k_i / T)) )

q: the model's embedding of one view; k: a slow copy's, the key encoder's, of the other;
k_i: the queue, keys of the batches before. All have unit length. A step is the paper's
Algorithm 1: keys, logits, backward; then this batch's keys, those of all ranks, replace
the oldest in the queue, and after the optimizer the key encoder follows the model.

Batches come from `moco_collator`: `data` and `data_momentum`.

ShuffleBN: each rank encodes keys of images that are not its own, or batch norms would
tell the model which keys are of its batch. Not needed where they see all ranks' images.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from sslengine.config.facts import RunFacts
from sslengine.distributed.collectives import Gathered, gather, permuted
from sslengine.distributed.ranks import world_size
from sslengine.errors import ConfigError, TrainingError
from sslengine.losses.views import described, expect_two_views
from sslengine.methods.base import Method, Step
from sslengine.methods.teacher import Teacher
from sslengine.registry import register_loss

NAME = "moco_loss"
KEY_IMAGES = "data_momentum"


@dataclass
class MoCoOptions:
    embedding_dim: int = 128
    # Keys to tell the right one from; a multiple of the batch size of all ranks together.
    queue_size: int = 65536
    # Of the key encoder.
    momentum: float = 0.999
    temperature: float = 0.2

    def infer(self, facts: RunFacts) -> None:
        expect_two_views(facts, NAME)
        _check_queue(self.queue_size, facts.global_batch_size)

    def check(self) -> Iterator[str]:
        for key in ("embedding_dim", "queue_size"):
            if getattr(self, key) < 1:
                yield f"{key}: expected 1 or more, got {getattr(self, key)}."
        if not 0 <= self.momentum <= 1:
            yield f"momentum: expected a number from 0 to 1, got {self.momentum}."
        if self.temperature <= 0:
            yield f"temperature: expected a number above 0, got {self.temperature}."


def _check_queue(queue_size: int, batch: int, hint: str = "") -> None:
    if queue_size % batch:
        raise ConfigError(
            f"config.LOSS.{NAME}.queue_size: expected a multiple of the batch size, so that whole "
            f"batches enter and leave the queue; got {queue_size}, and a batch has {batch} images "
            f"over all ranks. {hint or f'Nearest: {max(1, round(queue_size / batch)) * batch}.'}"
        )


@register_loss(NAME, options=MoCoOptions)
class MoCoLoss(Method):
    queue: Tensor
    queue_ptr: Tensor

    def __init__(self, options: MoCoOptions, run: RunFacts) -> None:
        super().__init__()
        for batch in run.batch_sizes:
            hint = "Set config.DATA.TRAIN.DROP_LAST: True to leave out the short last batch."
            _check_queue(options.queue_size, batch, hint)
        self.temperature, self.seed = options.temperature, run.seed
        self.shuffle = not run.sync_batch_norm
        self.key_encoder = Teacher(options.momentum, schedule="constant")
        # Until real keys have replaced them: random directions, the same on all ranks.
        start = torch.randn(options.queue_size, options.embedding_dim)
        self.register_buffer("queue", F.normalize(start, dim=1))
        # The oldest key. It stays on the device, where nobody has to wait for it.
        self.register_buffer("queue_ptr", torch.zeros(1, dtype=torch.long))
        self._new_keys: Tensor | None = None

    def forward(self, output: Any, sample: Any, step: Step) -> Tensor:
        """output: (B, D)."""
        queries = self._unit(output)
        keys, start = self._keys(sample, step)
        positive = (queries * keys[start : start + len(queries)]).sum(dim=1, keepdim=True)
        logits = torch.cat([positive, queries @ self.queue.T], dim=1) / self.temperature
        if step.train:
            self._new_keys = keys
        return F.cross_entropy(logits, self.queue_ptr.new_zeros(queries.shape[0]))

    @torch.no_grad()
    def after_backward(self, step: Step) -> None:
        """This batch's keys of all ranks, in their order, in place of the oldest.

        Not before the gradients: the backward pass reads the queue that the loss has read.
        """
        keys, self._new_keys = self._new_keys, None
        assert keys is not None
        count, length = keys.shape[0], self.queue.shape[0]
        places = self.queue_ptr + torch.arange(count, device=keys.device)
        self.queue.index_copy_(0, places.remainder_(length), keys)
        self.queue_ptr.add_(count).remainder_(length)

    def _keys(self, sample: Any, step: Step) -> Gathered:
        """Those of all ranks; in a test phase, of this rank's images alone."""
        images = sample.get(KEY_IMAGES)
        if images is None:
            raise TrainingError(
                f"{NAME} needs a second view of each image under {KEY_IMAGES!r}, the batch has "
                f"{', '.join(sample)}. Set the split's COLLATE_FUNCTION to moco_collator."
            )
        if not step.train:
            return Gathered(self._encode(images, step), 0)
        if world_size() == 1 or not self.shuffle:
            return gather(self._encode(images, step))
        order = shuffled(world_size() * images.shape[0], self.seed, step.iteration)
        keys, start = gather(self._encode(permuted(images, order), step))
        order = order.to(images.device, non_blocking=True)
        return Gathered(torch.empty_like(keys).index_copy_(0, order, keys), start)

    def _encode(self, images: Tensor, step: Step) -> Tensor:
        return self._unit(self.key_encoder(images, step))

    def _unit(self, output: Any) -> Tensor:
        width = self.queue.shape[1]
        if isinstance(output, Tensor) and output.ndim == 2 and output.shape[1] == width:
            return F.normalize(output, dim=1)
        raise TrainingError(
            f"{NAME} needs one embedding (B, {width}), the model gave {described(output)}. Does "
            f"the last head end in config.LOSS.{NAME}.embedding_dim?"
        )


def shuffled(count: int, seed: int, step: int) -> Tensor:
    """An order that all ranks agree on without a word, and that a resumed run finds again."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
    return torch.randperm(count, generator=generator)
