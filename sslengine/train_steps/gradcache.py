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

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from sslengine.errors import ConfigError
from sslengine.registry import register_train_step
from sslengine.train_steps import stages
from sslengine.train_steps.chunks import chunks_of, first_pass, joined, second_pass
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
    in_chunks = True  # the model does not see a batch at once

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
            chunks = list(chunks_of(sample["input"], self.chunk_size))
            outputs, streams = first_pass(task, chunks)
            embeddings, output = joined(outputs)
            output = stages.announce(task, output)  # fires on_forward
            with torch.enable_grad():
                loss = stages.compute_loss(task, output, sample)
            stages.reduce_loss(task, loss)
            stages.update_meters(task, output, sample)  # fires on_loss_and_meter
            with task.perf.backward:
                stages.backward_of_loss(task, loss)
                second_pass(task, chunks, streams, [leaf.grad for leaf in embeddings])
            stages.announce_gradients(task)
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
