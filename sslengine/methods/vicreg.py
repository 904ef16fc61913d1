"""VICReg: views of an image agree, every dimension varies, no two dimensions correlate.

Bardes, Ponce, LeCun, VICReg: Variance-Invariance-Covariance Regularization for
Self-Supervised Learning, 2022. Over the n images of the global batch, with z and z' the
embeddings (D wide) of their two views and Cov the covariance matrix with n - 1:

    invariance = mean over images and dimensions of (z - z')^2
    variance   = mean over both views and all dimensions of max(0, gamma - sqrt(Var + eps))
    covariance = (sum_{i != j} Cov(z)_ij^2 + sum_{i != j} Cov(z')_ij^2) / D
    loss       = sim_coeff * invariance + std_coeff * variance + cov_coeff * covariance

The authors' code computes this and gives the published accuracies. In the paper's equations 1
to 6 the invariance is D times and the variance twice as large: with lambda, mu and nu of the
paper, sim_coeff = D * lambda, std_coeff = 2 * mu, cov_coeff = nu.

Batches come from `simclr_collator`: first all first views, then all second ones.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as F

from sslengine.config.facts import RunFacts
from sslengine.config.ranges import above, at_least
from sslengine.losses.cross_correlation import variance_and_covariance
from sslengine.losses.views import split_views
from sslengine.methods.base import Method
from sslengine.registry import register_loss

NAME = "vicreg_loss"


@dataclass
class VICRegOptions:
    # Weight of invariance: views of an image are alike.
    sim_coeff: float = at_least(0, 25.0)
    # Weight of variance: dimensions keep their spread.
    std_coeff: float = at_least(0, 25.0)
    # Weight of covariance: dimensions are not correlated.
    cov_coeff: float = at_least(0, 1.0)
    # Target: the least standard deviation of each dimension.
    gamma: float = above(0, 1.0)
    # Added to variances before the root, whose slope at 0 is infinite.
    eps: float = above(0, 1e-4)


@register_loss(NAME, options=VICRegOptions, views=2, images=2)
class VICRegLoss(Method):
    def __init__(self, options: VICRegOptions, run: RunFacts) -> None:
        super().__init__()
        self.options = options

    def forward(self, output: Tensor, target: Tensor | None = None) -> dict[str, Tensor]:
        """output: (2B, D), view 0 of all images, then view 1. The target is not used.

        Returns the loss and its three unweighted terms. The invariance covers this rank's images
        only: averaging over ranks makes it that of all.
        """
        options = self.options
        views = split_views(output, 2, NAME)
        variance, covariance = variance_and_covariance(views, options.gamma, options.eps)
        invariance = F.mse_loss(views[0], views[1])
        parts = {"invariance": invariance, "variance": variance, "covariance": covariance}
        loss = (
            options.sim_coeff * parts["invariance"]
            + options.std_coeff * parts["variance"]
            + options.cov_coeff * parts["covariance"]
        )
        return {"loss": loss, **parts}
