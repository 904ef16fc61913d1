"""`gradcache_train_step`: the gradient of a loss over more images than fit into memory.

The model gets the batch in chunks, each under activation checkpointing: the loss sees all
embeddings, and the backward pass runs each chunk forward again, so that one chunk's graph is in
memory at a time. It is the gradient of the whole batch, of which a contrastive loss needs every
image: smaller batches, or accumulated ones, would be another loss. Dropout draws the same numbers
in both passes. Cost: one more forward. (Gao, Zhang, Han, Callan, "Scaling Deep Contrastive
Learning Batch Size under Memory Limited Setup", 2021.)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_map

from sslengine.config.ranges import at_least
from sslengine.engine.step import Sample, TrainStep
from sslengine.errors import ConfigError
from sslengine.models.trunks.library import recomputed
from sslengine.registry import register_train_step

if TYPE_CHECKING:
    from sslengine.engine.task import SelfSupervisionTask

NAME = "gradcache_train_step"


@dataclass
class GradcacheOptions:
    # Images (views, crops) that go through the model at once.
    CHUNK_SIZE: int = at_least(1, 64)
    # Batch norm in training mode normalises over a chunk: accept that.
    CHUNK_STATISTICS: bool = False


@register_train_step(NAME, options=GradcacheOptions)
class GradcacheTrainStep(TrainStep):
    in_chunks = True  # the model does not see a batch at once

    def __init__(self, options: GradcacheOptions) -> None:
        self.size = options.CHUNK_SIZE
        self.chunk_statistics = options.CHUNK_STATISTICS

    def apply(self, task: SelfSupervisionTask, sample: Sample) -> Any:
        model = task.parts.base_model
        if not task.state.train:  # no graph, nothing to save
            return super().apply(task, sample)
        if not self.chunk_statistics:
            _refuse_batch_norm(model)
        outputs = [
            recomputed([model], model, images) for images in split(sample["input"], self.size)
        ]
        return tree_map(lambda *parts: torch.cat(parts), outputs[0], *outputs[1:])


def _refuse_batch_norm(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm) and module.training:
            raise ConfigError(
                f"config.TRAINER.TRAIN_STEP_NAME: {name} is a batch norm in training mode, which "
                f"needs all images at once. Freeze it, or accept the statistics of each chunk: "
                f"config.TRAINER.{NAME}.CHUNK_STATISTICS=true."
            )


def split(images: Any, size: int) -> Iterator[Tensor]:
    """Yield chunks in the order in which the model gives the outputs of crops."""
    if isinstance(images, Mapping):
        raise ConfigError(f"config.DATA.TRAIN.INPUT_KEY_NAMES: {NAME} takes one, not {[*images]}.")
    for crops in [images] if isinstance(images, Tensor) else images:
        yield from crops.split(size)
