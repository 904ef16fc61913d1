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
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sslengine.config.facts import RunFacts
from sslengine.distributed.collectives import Gathered, gather, permuted
from sslengine.distributed.ranks import world_size
from sslengine.errors import ConfigError, TrainingError
from sslengine.hooks.events import Hook, TaskView
from sslengine.losses.momentum import follow, frozen_copy, rank_0_statistics
from sslengine.losses.views import described, expect_two_views
from sslengine.methods.base import Method
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
    teacher_part: ClassVar[str] = "key_encoder"
    key_encoder: nn.Module
    queue: Tensor
    queue_ptr: Tensor

    def __init__(self, options: MoCoOptions, run: RunFacts) -> None:
        super().__init__()
        self.momentum = options.momentum
        self.temperature = options.temperature
        self.shuffle = not run.sync_batch_norm
        # Until real keys have replaced them: random directions, the same on all ranks.
        start = torch.randn(options.queue_size, options.embedding_dim)
        self.register_buffer("queue", F.normalize(start, dim=1))
        # The oldest key. It stays on the device, where nobody has to wait for it.
        self.register_buffer("queue_ptr", torch.zeros(1, dtype=torch.long))
        # Of this step's batch; the hook puts them here.
        self.keys: Gathered | None = None

    def attach(self, model: nn.Module) -> None:
        self.key_encoder = frozen_copy(model)

    def hooks(self) -> list[Hook]:
        return [MoCoHook(self)]

    def forward(self, output: Tensor, target: Any = None) -> Tensor:
        """output: (B, D). The target is not used. Leaves the queue as it is: see `enqueue`."""
        queries = F.normalize(self._checked(output), dim=1)
        positive = (queries * self._own_keys(queries.shape[0])).sum(dim=1, keepdim=True)
        logits = torch.cat([positive, queries @ self.queue.T], dim=1) / self.temperature
        return F.cross_entropy(logits, self.queue_ptr.new_zeros(queries.shape[0]))

    def _own_keys(self, count: int) -> Tensor:
        if self.keys is None:
            raise TrainingError(
                f"{NAME} has no keys for this batch: its hook has not run. A task that uses this "
                f"loss runs the hooks that `loss.hooks()` gives."
            )
        return self.keys.rows[self.keys.start : self.keys.start + count]

    def _checked(self, output: Any) -> Tensor:
        width = self.queue.shape[1]
        if isinstance(output, Tensor) and output.ndim == 2 and output.shape[1] == width:
            return output
        raise TrainingError(
            f"{NAME} needs one embedding (B, {width}), the model gave {described(output)}. Does "
            f"the last head end in config.LOSS.{NAME}.embedding_dim?"
        )

    def encode(self, output: Any) -> Tensor:
        """The keys in the key encoder's output."""
        if isinstance(output, list) and len(output) == 1:
            output = output[0]
        return F.normalize(self._checked(output), dim=1)

    @torch.no_grad()
    def enqueue(self) -> None:
        """This batch's keys of all ranks, in their order, in place of the oldest."""
        assert self.keys is not None
        keys, self.keys = self.keys.rows, None
        places = self.queue_ptr + torch.arange(keys.shape[0], device=keys.device)
        self.queue.index_copy_(0, places % self.queue.shape[0], keys)
        self.queue_ptr.copy_((self.queue_ptr + keys.shape[0]) % self.queue.shape[0])


class MoCoHook(Hook):
    """Keys before the loss, the queue after the gradients, the key encoder after the model.

    Not before the gradients: the backward pass reads the queue that the loss has read.
    """

    def __init__(self, method: MoCoLoss) -> None:
        self.method = method
        self._seed = 0

    def on_start(self, task: TaskView) -> None:
        self._seed = int(task.config.SEED_VALUE)
        if task.train_feed is not None:
            for batch in task.train_feed.global_batch_sizes:
                hint = "Set config.DATA.TRAIN.DROP_LAST: True to leave out the short last batch."
                _check_queue(self.method.queue.shape[0], batch, hint)

    def on_forward(self, task: TaskView) -> None:
        images = task.last_batch.sample.get(KEY_IMAGES)
        if images is None:
            raise TrainingError(
                f"{NAME} needs a second view of each image under {KEY_IMAGES!r}, the batch has "
                f"{', '.join(task.last_batch.sample)}. Set the split's COLLATE_FUNCTION to "
                f"moco_collator."
            )
        if not task.train:
            self.method.keys = Gathered(self._encode(task, images), 0)
            return
        self.method.keys = self._keys_of_all_ranks(task, images)
        rank_0_statistics(self.method.key_encoder)

    def on_backward(self, task: TaskView) -> None:
        self.method.enqueue()

    def on_update(self, task: TaskView) -> None:
        follow(self.method.key_encoder, task.base_model, self.method.momentum)

    def _keys_of_all_ranks(self, task: TaskView, images: Tensor) -> Gathered:
        # `gather` outside of no_grad: shares are of one size, and it need not ask for them.
        if world_size() == 1 or not self.method.shuffle:
            return gather(self._encode(task, images))
        order = shuffled(world_size() * images.shape[0], self._seed, task.iteration)
        keys, start = gather(self._encode(task, permuted(images, order)))
        order = order.to(images.device, non_blocking=True)
        return Gathered(torch.empty_like(keys).index_copy_(0, order, keys), start)

    @torch.no_grad()
    def _encode(self, task: TaskView, images: Tensor) -> Tensor:
        with task.precision.autocast():
            output = self.method.key_encoder(images)
        return self.method.encode(task.precision.as_full(output))


def shuffled(count: int, seed: int, step: int) -> Tensor:
    """An order that all ranks agree on without a word, and that a resumed run finds again."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
    return torch.randperm(count, generator=generator)
