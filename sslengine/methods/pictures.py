"""Pictures of what a method reconstructs: each image, what is shown of it, what is made of it.

A method with `picture(rows)` has them on the page of its run, and, with the hook, among its images.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torchvision.utils import make_grid

from sslengine.distributed.ranks import is_primary
from sslengine.hooks.events import Hook, Task


def panels_of(images: Tensor, made: Tensor, hidden: Tensor) -> Tensor:
    """Stack N x 3 x C x H x W: the images, with what is hidden grey, and with it as it was made.

    hidden, N x C or 1 x H x W: 1 where a pixel is hidden, else 0.
    """
    grey = images.mean(dim=(1, 2, 3), keepdim=True).expand_as(images)
    shown, painted = torch.lerp(images, grey, hidden), torch.lerp(images, made, hidden)
    return torch.stack((images, shown, painted), dim=1)


class SavePictures(Hook):
    """Put a picture once every so many epochs: a row for each of the last batch's first images.

    draw: makes so many rows of K panels, N x K x C x H x W.
    """

    name = "pictures of mae"

    def __init__(self, draw: Callable[[int], Tensor], every: int, rows: int = 8) -> None:
        self.draw, self.every, self.rows = draw, every, rows

    def on_phase_end(self, task: Task) -> None:
        phase = task.phase
        ends_epoch = phase.last_step == task.train_feed.steps_per_epoch if task.train else False
        if ends_epoch and not (phase.epoch + 1) % self.every and is_primary():
            task.storage.put_image("mae", join_panels(self.draw(self.rows).float()))


def join_panels(panels: Tensor) -> Tensor:
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
