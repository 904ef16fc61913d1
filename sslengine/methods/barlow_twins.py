"""Barlow Twins: each dimension correlates between two views, and with no other dimension.

Zbontar et al., Barlow Twins: Self-Supervised Learning via Redundancy Reduction, 2021,
equations 1 and 2, with the embeddings z of each view centred over the global batch:

    C_ij = sum_b z_bi z'_bj / ( sqrt(sum_b z_bi^2) sqrt(sum_b z'_bj^2) )
    loss = scale_loss * ( sum_i (1 - C_ii)^2 + lambda_ * sum_{i != j} C_ij^2 )

As in the authors' code, 1e-5 is added to the variances, as in a batch norm.
Batches come from `simclr_collator`: first all first views, then all second ones.

The gradient equals that of one process with the global batch. In the authors' code and in VISSL
it is that divided by the number of GPUs, because their sum of C over GPUs passes no gradient.
LARS cancels this factor, except for the parameters that `exclude_bias_and_norm` updates by plain
SGD: to repeat their updates of biases and batch norms, divide scale_loss by their number of GPUs.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from sslengine.config.facts import RunFacts
from sslengine.config.ranges import above, at_least
from sslengine.losses.cross_correlation import cross_correlation, off_diagonal
from sslengine.losses.views import split_views
from sslengine.methods.base import Method
from sslengine.registry import register_loss

NAME = "barlow_twins_loss"
EPS = 1e-5


@dataclass
class BarlowTwinsOptions:
    # Weight of the redundancy term: the correlation of two different dimensions.
    lambda_: float = at_least(0, 0.0051)
    # A factor of the whole loss.
    scale_loss: float = above(0, 0.024)


@register_loss(NAME, options=BarlowTwinsOptions, views=2, images=2)
class BarlowTwinsLoss(Method):
    def __init__(self, options: BarlowTwinsOptions, run: RunFacts) -> None:
        super().__init__()
        self.redundancy_weight = options.lambda_
        self.scale = options.scale_loss

    def forward(self, output: Tensor, target: Tensor | None = None) -> Tensor:
        """output: (2B, D), view 0 of all images, then view 1. The target is not used."""
        correlation = cross_correlation(split_views(output, 2, NAME), EPS)
        invariance = (1 - correlation.diagonal()).square().sum()
        redundancy = off_diagonal(correlation).square().sum()
        return self.scale * (invariance + self.redundancy_weight * redundancy)
