"""SimMIM: reconstruct the pixels of hidden patches with one linear layer.

Xie et al., SimMIM: A Simple Framework for Masked Image Modeling, 2022. The trunk gets all patches,
of which a mask token replaces the hidden ones; a linear layer turns each token into pixels.

    loss = sum over hidden pixels of |reconstruction - image| / (hidden pixels + 1e-5), averaged
           over channels

The images are those of the batch, normalised as by its transforms. `RandomPatchMask` draws which
patches are hidden. A transformer in stages has fewer tokens than patches: `stride` is the side of
the square of each token, in pixels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sslengine.config.facts import RunFacts
from sslengine.distributed.ranks import world_size
from sslengine.errors import ConfigError, TrainingError
from sslengine.losses.views import described
from sslengine.methods.base import Method, Step
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
        self.stride = stride
        self.pixels = nn.Linear(in_dim, channels * stride * stride)

    def forward(self, x: Tensor) -> Tensor:
        """N x L x D, or a map N x D x H x W, to N x L x (channels * stride * stride)."""
        tokens = x.flatten(2).mT if x.ndim == 4 else x
        if tokens.ndim != 3 or tokens.shape[-1] != self.pixels.in_features:
            raise ConfigError(
                f"config.MODEL.HEAD.PARAMS: a pixel_head with in_dim {self.pixels.in_features} got "
                f"features of shape {tuple(x.shape)}; it takes N x L x D (lastPATCH) or "
                f"N x D x H x W (lastMAP)."
            )
        pixels: Tensor = self.pixels(tokens)
        return pixels

    def picture(self, images: Tensor, output: Tensor, mask: Tensor) -> Tensor:
        """N x 3 x C x H x W: each image, with hidden patches grey, and with these reconstructed."""
        height, width = images.shape[-2:]
        grid = (height // self.stride, width // self.stride)
        made = F.pixel_shuffle(output.mT.unflatten(2, grid), self.stride)
        away = F.interpolate(mask.unsqueeze(1).to(images.dtype), (height, width))
        grey = images.mean(dim=(1, 2, 3), keepdim=True).expand_as(images)
        panels = (images, torch.lerp(images, grey, away), torch.lerp(images, made, away))
        return torch.stack(panels, dim=1)


@dataclass
class SimMimOptions:
    # The side of the square of pixels of a token; set from pixel_head.
    stride: int = 16

    def infer(self, facts: RunFacts) -> None:
        self.stride = facts.head(HEAD).get("stride", 16)


@register_loss(
    NAME, options=SimMimOptions, heads=(HEAD,), inputs=("data", "mask"), trunk_input="mask"
)
class SimMimLoss(Method):
    def __init__(self, options: SimMimOptions, run: RunFacts) -> None:
        super().__init__()
        self.stride = options.stride

    def forward(self, output: Tensor, sample: Any, step: Step) -> Tensor:
        """output: N x L x (C * stride * stride), the pixels of each token."""
        images, mask = self._checked(output, sample)
        targets = F.pixel_unshuffle(images, self.stride).flatten(2).mT
        sides = (images.shape[-2] // mask.shape[1], images.shape[-1] // mask.shape[2])
        pixels = mask.repeat_interleave(sides[0], 1).repeat_interleave(sides[1], 2).unsqueeze(1)
        hidden = F.pixel_unshuffle(pixels.to(targets.dtype), self.stride).flatten(2).mT
        apart = (output - targets).abs().unflatten(-1, (images.shape[1], -1))
        least = 1e-5 / world_size()  # 1e-5 of the global batch: the same on any number of ranks
        loss: Tensor = (apart * hidden.unsqueeze(2)).sum() / (hidden.sum() + least)
        return loss / images.shape[1]

    def _checked(self, output: Any, sample: Any) -> tuple[Tensor, Tensor]:
        images, mask = sample["input"]["data"], sample["input"]["mask"]
        shape = tuple(getattr(output, "shape", ()))
        if len(shape) != 3 or len(images) * images[0].numel() != output.numel():
            raise TrainingError(
                f"{NAME} needs the pixels of images of shape {tuple(images.shape)}; the model "
                f"returned {described(output)}. A stride of {self.stride} fits a trunk that makes "
                f"one token of {self.stride} x {self.stride} pixels; pixel_head needs channels: "
                f"{images.shape[1]}."
            )
        return images, mask
