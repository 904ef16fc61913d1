"""Do features of different images differ? The simplest sign of a collapse; no labels needed.

Chen and He, Exploring Simple Siamese Representation Learning, 2021, section 4.1: the
standard deviation of each dimension of f / |f| over the images, averaged over dimensions.
0 where all features point the same way; 1 / sqrt(D), and never more, where they point
everywhere alike.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from sslengine.errors import DataError


@torch.no_grad()
def feature_std(features: Tensor) -> Tensor:
    """Of (N, D) features; stays on their device."""
    if features.ndim != 2 or not features.numel():
        raise DataError(
            f"Standard deviation of features: expected a matrix (N, D), got shape "
            f"{tuple(features.shape)}."
        )
    features = features.to(torch.promote_types(features.dtype, torch.float32))
    # Over N, not N - 1: it is what makes 1 / sqrt(D) the largest value, at any N.
    return F.normalize(features, dim=1).std(dim=0, correction=0).mean()
