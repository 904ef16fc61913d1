"""VISReg: as LeJEPA, with center, scale and shape of the embeddings regularised one by one.

Wu et al., VISReg, 2026 (arXiv 2606.02572). With z_v the projections of view v of the n images of
the global batch, m their mean and s their deviation (of n, and 1e-6 more) in each dimension, and
unit vectors a drawn by each rank for each step:

    center = mean of m^2,    scale = mean of (1 - s)^2
    shape  = mean over a and i of (i-th least of a.(z_v - m) / s - Phi^-1(i / (n + 1)))^2
    loss   = (1 - weight) * agreement + weight * (center + scale + shape)

all of them means over views too; shape passes no gradient to s; agreement is LeJEPA's.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sslengine.distributed.ranks import rank, world_size
from sslengine.methods.lejepa import LeJEPA, draw_directions
from sslengine.methods.toolbox import Step, ViewTrunk, gather, mlp
from sslengine.registry import register_loss


@register_loss("visreg")
class VISReg(LeJEPA):
    def __init__(
        self, trunk: ViewTrunk, dim: int = 64, hidden: int = 2048, weight: float = 0.9,
        slices: int = 4096,
    ) -> None:  # fmt: skip
        """
        dim, hidden: widths of the projector's output and of its two hidden layers.
        weight: that of center, scale and shape; 0.6 for small datasets. The rest is agreement's.
        slices: the number of unit vectors of each rank.
        """
        super().__init__(trunk, dim, hidden, weight, slices)
        self.projector = mlp(trunk.width, hidden, hidden, dim, activation=nn.GELU)

    def regularise(self, z: Tensor, step: Step) -> dict[str, Tensor]:
        z, number = gather(z, dim=1).rows, step.iteration * world_size() + rank()
        directions = draw_directions(self.slices, z, number)
        mean, images = z.mean(dim=1, keepdim=True), z.shape[1]
        deviation = z.std(dim=1, keepdim=True, correction=0) + 1e-6
        even = (z - mean) / deviation.detach()
        shares = torch.arange(1, images + 1, device=z.device, dtype=z.dtype) / (images + 1)
        normal = (2 * shares - 1).erfinv() * 2**0.5
        found = (even @ directions.mT).sort(dim=1).values
        return {
            "center": mean.square().mean(),
            "scale": (1 - deviation).square().mean(),
            "shape": (found - normal.unsqueeze(-1)).square().mean(),
        }
