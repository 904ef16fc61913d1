"""RankMe: how many dimensions do features use? No labels needed.

Garrido et al., RankMe: Assessing the Downstream Performance of Pretrained Self-Supervised
Representations by Their Rank, 2023. With the singular values s_k of the features:

    p_k = s_k / sum_j s_j + eps
    RankMe = exp( -sum_k p_k log p_k )

From 1, when all features lie on one line through the origin, to min(N, D).
"""

from __future__ import annotations

import torch
from torch import Tensor

from sslengine.errors import DataError

EPS = 1e-7


@torch.no_grad()
def rankme(features: Tensor) -> Tensor:
    """Of (N, D) features; NaN where some are not finite. Waits for the device."""
    if features.ndim != 2 or not features.numel():
        raise DataError(
            f"RankMe: expected a matrix of features (N, D), got shape {tuple(features.shape)}."
        )
    features = features.to(torch.promote_types(features.dtype, torch.float32))
    if not features.isfinite().all():
        return features.new_tensor(float("nan"))
    singular: Tensor = torch.linalg.svdvals(features)
    # Features that are all zero have no direction: their rank is that of a point, about 1.
    total = singular.sum().clamp(min=torch.finfo(singular.dtype).tiny)
    shares = singular / total + EPS
    entropy = -(shares * shares.log()).sum()
    return entropy.exp()
