"""How much features of different images differ, and in how many dimensions. Needs no labels.

feature_std   Chen and He, Exploring Simple Siamese Representation Learning, 2021, section 4.1:
              the standard deviation of each dimension of f / |f| over the images, averaged over
              dimensions. It is 0 if all features have the same direction, and at most
              1 / sqrt(D), if their directions are uniform.
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
from sslengine.evaluate.label_free.spectrum import RANKME_EPS, exp_entropy


@torch.no_grad()
def feature_std(features: Tensor) -> Tensor:
    """Of (N, D) features; the result stays on their device."""
    features = _matrix(features, "Standard deviation of features")
    # Divide by N, not N - 1: then 1 / sqrt(D) is the largest value for any N.
    return F.normalize(features, dim=1).std(dim=0, correction=0).mean()


@torch.no_grad()
def rankme(features: Tensor) -> Tensor:
    """Of (N, D) features; NaN if some are not finite. Synchronises with the device."""
    features = _matrix(features, "RankMe")
    if not features.isfinite().all():
        return features.new_tensor(float("nan"))
    singular: Tensor = torch.linalg.svdvals(features)
    return exp_entropy(singular, RANKME_EPS)


@torch.no_grad()
def spectrum(features: Tensor) -> Tensor:
    """Return the singular values of centred (N, ...) features, the largest is 1; none of features
    that are not finite."""
    rows = _matrix(features.flatten(1), "Spectrum of features")
    if not rows.isfinite().all():
        return rows.new_zeros(0)
    singular: Tensor = torch.linalg.svdvals(rows - rows.mean(dim=0))
    return singular / singular.max().clamp(min=torch.finfo(singular.dtype).tiny)


def _matrix(features: Tensor, of: str) -> Tensor:
    """Check the shape, and convert to at least single precision."""
    if features.ndim != 2 or not features.numel():
        raise DataError(
            f"{of}: expected a matrix of features (N, D), got shape {tuple(features.shape)}."
        )
    return features.to(torch.promote_types(features.dtype, torch.float32))
