"""LeJEPA: views of an image agree, and embeddings are normally distributed.

Balestriero and LeCun, LeJEPA: Provable and Scalable Self-Supervised Learning Without the
Heuristics, 2025. With z_v the projections of view v of the n images of the global batch, c the mean
over the global views (those as large as the first), and unit vectors a drawn for each step, the
same on all ranks:

    agreement = mean over views, images and dimensions of (z_v - c)^2
    sigreg    = mean over views and a of  n * integral over t from -3 to 3 of
                |mean over images of exp(i t a.z_v) - phi(t)|^2 phi(t),   phi(t) = exp(-t^2 / 2)
    loss      = (1 - weight) * agreement + weight * sigreg

The integral is twice that from 0, by the trapezoidal rule on 17 points.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from sslengine.distributed.collectives import sum_over_ranks
from sslengine.distributed.ranks import world_size
from sslengine.methods.toolbox import Batch, Method, Step, ViewTrunk, mlp
from sslengine.registry import register_loss

KNOTS, LAST = 17, 3.0


@register_loss("lejepa", several_views=True)
class LeJEPA(Method):
    def __init__(
        self, trunk: ViewTrunk, dim: int = 64, hidden: int = 2048, weight: float = 0.05,
        slices: int = 1024,
    ) -> None:  # fmt: skip
        """
        dim, hidden: widths of the projector's output and of its two hidden layers.
        weight: that of sigreg; the rest is the weight of agreement.
        slices: the number of unit vectors.
        """
        super().__init__()
        self.trunk, self.weight, self.slices = trunk, weight, slices
        self.projector = mlp(trunk.width, hidden, hidden, dim)

    def forward(self, batch: Batch, step: Step) -> dict[str, Tensor]:
        z, views = self.projector(self.trunk(batch.views)), batch.views
        large = sum(view.shape[-2:] == views[0].shape[-2:] for view in views)
        agreement = (z - z[:large].mean(dim=0)).square().mean()
        parts = self.regularise(z, step)
        regularity = torch.stack([*parts.values()]).sum()
        loss = (1 - self.weight) * agreement + self.weight * regularity
        return {"loss": loss, "agreement": agreement, **parts}

    def regularise(self, z: Tensor, step: Step) -> dict[str, Tensor]:
        """Return terms of views x images x dim, which are summed."""
        return {"sigreg": sigreg(z, draw_directions(self.slices, z, step.iteration))}


def sigreg(z: Tensor, directions: Tensor) -> Tensor:
    """Return how far projections of views x images x dim are from a normal distribution."""
    t = torch.linspace(0, LAST, KNOTS, device=z.device, dtype=z.dtype)
    phi = (-t.square() / 2).exp()
    weights = 2 * LAST / (KNOTS - 1) * phi
    angles = (z @ directions.mT).unsqueeze(-1) * t  # views x images x directions x knots
    wave = torch.stack([angles.cos(), angles.sin()]).mean(dim=2)
    cos, sin = sum_over_ranks(wave) / world_size()
    error = ((cos - phi).square() + sin.square()) * weights
    integral = error.sum(dim=-1) - (error[..., 0] + error[..., -1]) / 2
    statistic: Tensor = integral.mean() * z.shape[1] * world_size()
    return statistic


def draw_directions(count: int, like: Tensor, number: int) -> Tensor:
    """Return `count` random unit vectors: of one number the same on every rank and device."""
    bits = _scramble(torch.arange(count * like.shape[-1], device=like.device))
    uniform = ((_scramble(bits + number) >> 9) + 0.5) / 2**23
    normal = (2 * uniform - 1).to(like.dtype).erfinv()
    return F.normalize(normal.view(count, -1), dim=1)


def _scramble(bits: Tensor) -> Tensor:
    """Map numbers of 32 bits one to one to others that look random."""
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        bits = (bits ^ (bits >> shift)) * factor & 0xFFFFFFFF
    return bits ^ (bits >> 16)
