"""Draw a model's output, and histograms of its parameters and gradients."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torchvision.utils import make_grid

from sslengine.distributed.ranks import is_primary
from sslengine.distributed.sharding import whole
from sslengine.hooks.events import Hook, Task
from sslengine.monitor.writers import TensorBoardWriter

# images, `last_batch.vis_preds`, `last_batch.vis_masks` -> N x K x C x H x W: K panels for each.
Draw = Callable[[Tensor, Any, Any], Tensor]


class SavePictures(Hook):
    """Put a picture once every so many epochs: a row for each of the last batch's first images."""

    def __init__(self, name: str, draw: Draw, every: int, key: str = "data", rows: int = 8) -> None:
        self.title, self.draw, self.every, self.key, self.rows = name, draw, every, key, rows

    @property
    def name(self) -> str:
        return f"pictures of {self.title}"

    def on_phase_end(self, task: Task) -> None:
        batch, phase = task.last_batch, task.phase
        ends_epoch = phase.last_step == task.train_feed.steps_per_epoch if task.train else False
        if not ends_epoch or (phase.epoch + 1) % self.every or not is_primary():
            return
        chosen = (batch.sample["input"][self.key], batch.vis_preds, batch.vis_masks)
        panels = self.draw(*(each[: self.rows] for each in chosen)).float()
        task.storage.put_image(self.title, grid(panels))


def grid(panels: Tensor) -> Tensor:
    """Join panels to one picture, 0 to 1. Each row is scaled by its first panel, to compare."""
    first = panels[:, :1].flatten(1)
    low, high = first.amin(1), first.amax(1)
    shape = (-1, *[1] * (panels.ndim - 1))
    scaled = (panels - low.view(shape)) / (high - low).clamp_min(1e-6).view(shape)
    images = scaled.clamp(0, 1).flatten(0, 1)
    larger = max(1, 96 // images.shape[-2])  # small images are hard to see
    images = images.repeat_interleave(larger, dim=-2).repeat_interleave(larger, dim=-1)
    with torch.no_grad():
        return make_grid(images, nrow=panels.shape[1], padding=2, pad_value=1.0)


class TensorBoardHistograms(Hook):
    """Write histograms of parameters and gradients every so many steps.

    Each time they are copied to the host. A sharded run gathers them one by one.
    """

    def __init__(self, every: int, parameters: bool, gradients: bool) -> None:
        self.every, self.parameters, self.gradients = every, parameters, gradients

    def on_update(self, task: Task) -> None:
        if task.iteration % self.every:
            return
        writers = [each for each in task.writers if isinstance(each, TensorBoardWriter)]
        if not (writers or task.peers):  # all ranks of a sharded run have to gather
            return
        for name, parameter in task.learner.named_parameters():
            shown = {"parameters": parameter if self.parameters else None,
                     "gradients": parameter.grad if self.gradients else None}  # fmt: skip
            for kind, each in shown.items():
                values = None if each is None else whole(each)
                for writer in () if values is None else writers:
                    add = writer.summary.add_histogram
                    writer.attempt(partial(add, f"{kind}/{name}", values, task.iteration))
