"""Do features of different images differ, and in how many dimensions? No labels needed.

feature_std   Chen and He, Exploring Simple Siamese Representation Learning, 2021, section 4.1:
              the standard deviation of each dimension of f / |f| over the images, averaged over
              dimensions. 0 where all features point the same way; 1 / sqrt(D), and never more,
              where they point everywhere alike.
rankme        Garrido et al., RankMe: Assessing the Downstream Performance of Pretrained
              Self-Supervised Representations by Their Rank, 2023. With the singular values s_k:

                  p_k = s_k / sum_j s_j + eps
                  RankMe = exp( -sum_k p_k log p_k )

              From 1, when all features lie on one line through the origin, to min(N, D).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from sslengine.errors import DataError

EPS = 1e-7


@torch.no_grad()
def feature_std(features: Tensor) -> Tensor:
    """Of (N, D) features; stays on their device."""
    features = _matrix(features, "Standard deviation of features")
    # Over N, not N - 1: it is what makes 1 / sqrt(D) the largest value, at any N.
    return F.normalize(features, dim=1).std(dim=0, correction=0).mean()


@torch.no_grad()
def rankme(features: Tensor) -> Tensor:
    """Of (N, D) features; NaN where some are not finite. Waits for the device."""
    features = _matrix(features, "RankMe")
    if not features.isfinite().all():
        return features.new_tensor(float("nan"))
    singular: Tensor = torch.linalg.svdvals(features)
    # Features that are all zero have no direction: their rank is that of a point, about 1.
    total = singular.sum().clamp(min=torch.finfo(singular.dtype).tiny)
    shares = singular / total + EPS
    entropy = -(shares * shares.log()).sum()
    return entropy.exp()


def _matrix(features: Tensor, of: str) -> Tensor:
    """In single precision at least."""
    if features.ndim != 2 or not features.numel():
        raise DataError(
            f"{of}: expected a matrix of features (N, D), got shape {tuple(features.shape)}."
        )
    return features.to(torch.promote_types(features.dtype, torch.float32))
