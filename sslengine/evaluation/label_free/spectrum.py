"""Singular values and covariances of features, which several metrics share."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.weak import WeakTensorKeyDictionary

from sslengine.evaluation.label_free.metric import Undefined

# Added to the shares in RankMe and LiDAR.
RANKME_EPS = 1e-7


def once_per_tensor(compute: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Keep the result as long as the tensor exists and does not change."""
    known = WeakTensorKeyDictionary()

    @wraps(compute)
    def cached(rows: Tensor) -> Tensor:
        version = 0 if rows.is_inference() else rows._version
        found = known.get(rows)
        if found is None or found[0] != version:
            found = known[rows] = (version, compute(rows))
        result: Tensor = found[1]
        return result

    return cached


@once_per_tensor
def singular_values(features: Tensor) -> Tensor:
    """Descending; of the features without centring."""
    values: Tensor = torch.linalg.svdvals(features)
    return values


@once_per_tensor
def variances(features: Tensor) -> Tensor:
    """The eigenvalues of the covariance, descending. Those within rounding of 0 are 0."""
    values: Tensor = torch.linalg.svdvals(features - features.mean(dim=0))
    found: Tensor = values.where(values > rounding(features), 0.0).square() / (len(features) - 1)
    return found


def rounding(features: Tensor) -> Tensor:
    """Singular values up to this one may be rounding."""
    least: Tensor = torch.finfo(features.dtype).eps * max(features.shape) * features.norm()
    return least


def expect_different(features: Tensor) -> None:
    if (features - features.mean(dim=0)).norm() <= rounding(features):
        raise Undefined("all images have the same features")


def directions(features: Tensor) -> Tensor:
    """Rows of unit length. A row that is all zero has no direction."""
    lengths = features.norm(dim=-1)
    if not lengths.all():
        raise Undefined(f"{int((lengths == 0).sum())} rows are all zero, without a direction")
    return F.normalize(features, dim=-1)


def exp_entropy(values: Tensor, eps: float = 0.0) -> Tensor:
    """exp of the entropy of p = values / their sum + eps: how many are large, from 1 on."""
    # Values that are all zero have a result of about 1.
    total = values.sum().clamp(min=torch.finfo(values.dtype).tiny)
    shares = values / total + eps
    entropy: Tensor = torch.special.entr(shares).sum()
    return entropy.exp()
