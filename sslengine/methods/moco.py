"""MoCo v2: recognise the other view of an image among a queue of views of other images.

He et al., Momentum Contrast for Unsupervised Visual Representation Learning, 2020,
equation 1; v2 (Chen et al., 2020) is its head, augmentation and temperature:

    l_q = -log( exp(q k / T) / (exp(q k / T) + sum_i exp(q k_i / T)) )

q: the model's embedding of one view; k: the key encoder's (a momentum copy) of the other view;
k_i: the queue, keys of earlier batches. All have unit length. A step is the paper's Algorithm 1:
keys, logits, backward; then the keys of this batch on all ranks replace the oldest in the queue,
and after the optimizer step the key encoder is averaged with the model.

Batches come from `moco_collator`: `data` and `data_momentum`.

ShuffleBN: each rank encodes keys of other ranks' images; otherwise batch norms would show the
model which keys belong to its batch. With SyncBN it is not needed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from sslengine.config.facts import RunFacts
from sslengine.config.ranges import above, at_least, share
from sslengine.distributed.collectives import Gathered, gather, permuted
from sslengine.distributed.ranks import world_size
from sslengine.errors import ConfigError, TrainingError
from sslengine.methods.base import Method, Step
from sslengine.methods.teacher import Teacher
from sslengine.registry import register_loss

NAME = "moco_loss"
KEY_IMAGES = "data_momentum"


@dataclass
class MoCoOptions:
    # Width of the embeddings: that of the last head.
    embedding_dim: int = at_least(1, 128)
    # Number of negative keys; a multiple of the batch size of all ranks together.
    queue_size: int = at_least(1, 65536)
    # Momentum of the key encoder.
    momentum: float = share(0.999)
    # The similarities are divided by it.
    temperature: float = above(0, 0.2)

    def infer(self, facts: RunFacts) -> None:
        _check_queue(self.queue_size, facts.global_batch_size)


def _check_queue(queue_size: int, batch: int, hint: str = "") -> None:
    if queue_size % batch:
        raise ConfigError(
            f"config.LOSS.{NAME}.queue_size: expected a multiple of the batch size, since each "
            f"batch replaces the oldest one; got {queue_size}, and a batch has {batch} images over "
            f"all ranks. {hint or f'Nearest: {max(1, round(queue_size / batch)) * batch}.'}"
        )


@register_loss(NAME, options=MoCoOptions, views=2)
class MoCoLoss(Method):
    queue: Tensor
    queue_ptr: Tensor

    def __init__(self, options: MoCoOptions, run: RunFacts) -> None:
        super().__init__()
        for batch in run.batch_sizes:
            hint = "Set config.DATA.TRAIN.DROP_LAST: True to drop the short last batch."
            _check_queue(options.queue_size, batch, hint)
        self.temperature, self.seed = options.temperature, run.seed
        self.shuffle = not run.sync_batch_norm
        self.key_encoder = Teacher(options.momentum, schedule="constant")
        # Random directions until real keys have replaced them; the same on all ranks.
        start = torch.randn(options.queue_size, options.embedding_dim)
        self.register_buffer("queue", F.normalize(start, dim=1))
        # Position of the oldest key. On the device, so that reading it does not synchronise.
        self.register_buffer("queue_ptr", torch.zeros(1, dtype=torch.long))
        self._new_keys: Tensor | None = None

    def forward(self, output: Any, sample: Any, step: Step) -> Tensor:
        """output: (B, D)."""
        queries = F.normalize(output, dim=1)
        keys, start = self._keys(sample, step)
        positive = (queries * keys[start : start + len(queries)]).sum(dim=1, keepdim=True)
        logits = torch.cat([positive, queries @ self.queue.T], dim=1) / self.temperature
        if step.train:
            self._new_keys = keys
        return F.cross_entropy(logits, self.queue_ptr.new_zeros(queries.shape[0]))

    @torch.no_grad()
    def after_backward(self, step: Step) -> None:
        """Replace the oldest keys by this batch's keys of all ranks, in rank order.

        After the gradients: the backward pass needs the queue that the loss has used.
        """
        keys, self._new_keys = self._new_keys, None
        assert keys is not None
        count, length = keys.shape[0], self.queue.shape[0]
        places = self.queue_ptr + torch.arange(count, device=keys.device)
        self.queue.index_copy_(0, places.remainder_(length), keys)
        self.queue_ptr.add_(count).remainder_(length)

    def _keys(self, sample: Any, step: Step) -> Gathered:
        """The keys of all ranks; in a test phase only of this rank's images."""
        images = sample.get(KEY_IMAGES)
        if images is None:
            raise TrainingError(
                f"{NAME} needs a second view of each image under {KEY_IMAGES!r}; the batch has "
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
        return F.normalize(self.key_encoder(images, step), dim=1)


def shuffled(count: int, seed: int, step: int) -> Tensor:
    """A random order that is the same on all ranks and in a resumed run."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
    return torch.randperm(count, generator=generator)
