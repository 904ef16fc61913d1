"""SimMIM: reconstruct the pixels of hidden patches with one linear layer.

Xie et al., SimMIM: A Simple Framework for Masked Image Modeling, 2022. The trunk gets all patches,
of which a mask token replaces the hidden ones; a linear layer turns each token into pixels.

    loss = sum over hidden pixels of |reconstruction - image| / (hidden pixels + 1e-5), averaged
           over channels

The images are those of the batch, normalised as by its transforms. `RandomPatchMask` draws which
patches are hidden. A transformer in stages has fewer tokens than patches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sslengine.config.facts import RunFacts
from sslengine.config.ranges import at_least
from sslengine.distributed.ranks import world_size
from sslengine.errors import TrainingError
from sslengine.methods.base import Method, Step
from sslengine.methods.pictures import panels_of
from sslengine.methods.whole import Batch
from sslengine.models.view_trunk import ViewTrunk
from sslengine.registry import register_head, register_loss

NAME, HEAD = "simmim_loss", "pixel_head"


@register_head(HEAD)
class PixelHead(nn.Module):
    """A linear layer from each token to the pixels of its square."""

    def __init__(self, in_dim: int, stride: int = 16, channels: int = 3) -> None:
        """
        in_dim: width of a token.
        stride: the side of a token's square, in pixels.
        channels: of the image.
        """
        super().__init__()
        self.pixels = nn.Linear(in_dim, channels * stride * stride)

    def forward(self, x: Tensor) -> Tensor:
        """N x L x D, or a map N x D x H x W, to N x L x (channels * stride * stride)."""
        pixels: Tensor = self.pixels(x.flatten(2).mT if x.ndim == 4 else x)
        return pixels


@dataclass
class SimMimOptions:
    # The side of the square of pixels of a token; 0: that of vision_transformer's patches, else 16.
    stride: int = at_least(0, 0)

    def infer(self, facts: RunFacts) -> None:
        given = facts.head(HEAD).get("stride", 16) if facts.head(HEAD) else self.stride
        self.stride = given or facts.patch_size or 16


@register_loss(NAME, options=SimMimOptions, collators=("default_collate",), trunk_input="mask")
class SimMimLoss(Method):
    earlier_names: ClassVar[dict[str, str]] = {"heads.0.": "head."}

    def __init__(self, options: SimMimOptions, trunk: ViewTrunk) -> None:
        super().__init__()
        trunk.take("mask")
        self.trunk, self.stride = trunk, options.stride
        self.feature = "lastPATCH" if "lastPATCH" in trunk.trunk.feature_names else "lastMAP"
        self.head = PixelHead(trunk.width, self.stride, trunk.trunk.in_chans or 3)
        self._painted: tuple[Tensor, ...] = ()

    def forward(self, batch: Batch, step: Step) -> Tensor:
        images, mask = batch.views[0], batch.sample["mask"]
        output = self.head(self.trunk(images, [self.feature], mask=mask)[self.feature])
        if output.numel() != images.numel():
            raise TrainingError(
                f"config.LOSS.{NAME}.stride: the trunk makes {output.shape[1]} tokens of images of "
                f"shape {tuple(images.shape)}, which do not fit squares of {self.stride} pixels."
            )
        self._painted = images, output.detach(), mask
        targets = F.pixel_unshuffle(images, self.stride).flatten(2).mT
        hidden = F.pixel_unshuffle(_pixels(mask, images), self.stride).flatten(2).mT
        apart = (output - targets).abs().unflatten(-1, (images.shape[1], -1))
        least = 1e-5 / world_size()  # 1e-5 of the global batch: the same on any number of ranks
        loss: Tensor = (apart * hidden.unsqueeze(2)).sum() / (hidden.sum() + least)
        return loss / images.shape[1]

    @torch.no_grad()
    def picture(self, rows: int) -> Tensor:
        """Draw the first images of the last batch, as `panels_of`."""
        images, output, mask = (each[:rows] for each in self._painted)
        grid = (images.shape[-2] // self.stride, images.shape[-1] // self.stride)
        made = F.pixel_shuffle(output.mT.unflatten(2, grid), self.stride)
        return panels_of(images, made, _pixels(mask, images))


def _pixels(mask: Tensor, images: Tensor) -> Tensor:
    """Return N x 1 x H x W: 1 where a pixel is hidden."""
    sides = (images.shape[-2] // mask.shape[1], images.shape[-1] // mask.shape[2])
    pixels = mask.repeat_interleave(sides[0], 1).repeat_interleave(sides[1], 2)
    return pixels.unsqueeze(1).to(images.dtype)
