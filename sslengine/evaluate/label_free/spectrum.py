"""Singular values and covariances of features, which several metrics share.

How many dimensions features fill, by their singular values s or variances v.

rankme               Garrido et al., 2023: exp(entropy of s / sum s + 1e-7), features not centred
effective_rank       Roy and Vetterli, 2007: the same without 1e-7
stable_rank          sum s^2 / s_1^2, features not centred (Tsitsulin et al., 2023)
participation_ratio  (sum v)^2 / sum v^2, of the covariance
nesum                He and Ozay, 2022: sum v / v_1, of the covariance; 0 where v_1 is 0

All are between 1 and min(N, D), and grow with N.

alpha-ReQ (Agrawal et al., 2022): how fast the variances of features decay, v_i ~ i^-alpha.

A weighted least squares line through (log i, log v_i), i from 11 to 100, with weights 1/i; `r2` is
how well it fits. With fewer dimensions than 101 the last one is left out. Values near 1 are read as
good. A collapsed spectrum is no power law.

Coherence (Tsitsulin et al., 2023): does a single image have its own dimension?

N / r max_i |U_i|^2, with U the left singular vectors and r their number: 1 if all images count
equally in the subspace of the features, N / r if one image has a dimension alone. Vectors of
singular values that are 0 are left out: they are arbitrary.

LiDAR (Thilak et al., 2024): how many dimensions tell images apart, augmentations being noise.

Each image is a class, its augmented views are the members. With the covariance S_b of the images'
means and S_w of the views around them, DELTA added to its diagonal, the eigenvalues of
S_w^-1/2 S_b S_w^-1/2 count as in RankMe. From 1 to min(D, n - 1).

`feature_std` (Chen and He, SimSiam, 2021, section 4.1), which training reports: the deviation of
each dimension of f / |f| over the images, averaged over dimensions. It is 0 if all features have
the same direction, and at most 1 / sqrt(D), if their directions are uniform.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.weak import WeakTensorKeyDictionary

from sslengine.evaluate.label_free.metric import Undefined, register_metric

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


@register_metric("rankme", best="high")
def rankme(features: Tensor) -> float:
    return exp_entropy(singular_values(features), RANKME_EPS).item()


@register_metric("effective_rank", best="high")
def effective_rank(features: Tensor) -> float:
    return exp_entropy(_not_all_zero(singular_values(features))).item()


@register_metric("stable_rank", best="high")
def stable_rank(features: Tensor) -> float:
    values = _not_all_zero(singular_values(features))
    return (values / values[0]).square().sum().item()


@register_metric("participation_ratio", best="high")
def participation_ratio(features: Tensor) -> float:
    found = variances(features)
    if not found[0]:
        raise Undefined("all images have the same features")
    shares = found / found[0]
    return (shares.sum().square() / shares.square().sum()).item()


@register_metric("nesum", best="high")
def nesum(features: Tensor) -> float:
    found = variances(features)
    return (found / found[0]).sum().item() if found[0] else 0.0


def _not_all_zero(values: Tensor) -> Tensor:
    if not values[0]:
        raise Undefined("all features are zero")
    return values


FIRST, LAST = 11, 100
LEAST_POINTS = 10


@register_metric("alpha_req", best="near 1")
def alpha_req(features: Tensor) -> tuple[float, dict[str, float]]:
    found = variances(features)
    positive = int((found > 0).sum())
    last = min(LAST, positive - 1)
    if len(features) <= LAST or last - FIRST + 1 < LEAST_POINTS:
        raise Undefined(
            f"it needs more than {LAST} rows and {FIRST + LEAST_POINTS} dimensions in which "
            f"they differ; there are {len(features)} and {positive}"
        )
    ranks = torch.arange(FIRST, last + 1, dtype=found.dtype, device=found.device)
    x, y, weights = -ranks.log(), (found[FIRST - 1 : last] / found.sum()).log(), 1 / ranks
    x_mean, y_mean = ((weights * each).sum() / weights.sum() for each in (x, y))
    alpha = (weights * (x - x_mean) * (y - y_mean)).sum() / (weights * (x - x_mean) ** 2).sum()
    rest = y - y_mean - alpha * (x - x_mean)
    r2 = 1 - rest.square().sum() / (y - y.mean()).square().sum()
    return alpha.item(), {"r2": r2.item(), "last": float(last)}


@register_metric("coherence", best="low")
def coherence(features: Tensor) -> float:
    left: Tensor
    values: Tensor
    left, values, _ = torch.linalg.svd(features, full_matrices=False)
    if not values[0]:
        raise Undefined("all features are zero")
    rank = int((values > rounding(features)).sum())
    return (len(features) / rank * left[:, :rank].square().sum(dim=1).max()).item()


DELTA = 1e-4


@register_metric("lidar", best="high")
def lidar(projections: Tensor) -> float:
    images, views, width = projections.shape
    if views < 2:
        raise Undefined("it needs 2 views of each image or more")
    means = projections.mean(dim=1)
    expect_different(means)
    between = (means - means.mean(dim=0)).T.cov().view(width, width)
    around = (projections - means[:, None]).flatten(0, 1)
    within = around.T @ around / (images * (views - 1))
    values, vectors = torch.linalg.eigh(within)
    # The smallest ones are 0 up to rounding, which may be below.
    whiten = vectors / (values.clamp(min=0) + DELTA).sqrt()
    found = torch.linalg.eigvalsh(whiten.T @ between @ whiten).clamp(min=0)
    return exp_entropy(found, RANKME_EPS).item()


# ---- while a network is trained


@torch.no_grad()
def feature_std(features: Tensor) -> Tensor:
    """Measure (N, D) features; the result stays on their device."""
    features = _as_single(features)
    # Divide by N, not N - 1: then 1 / sqrt(D) is the largest value for any N.
    return F.normalize(features, dim=1).std(dim=0, correction=0).mean()


@torch.no_grad()
def compute_rankme(features: Tensor) -> Tensor:
    """Compute RankMe of (N, D) features in their precision; NaN if some are not finite."""
    features = _as_single(features)
    if not features.isfinite().all():
        return features.new_tensor(float("nan"))
    singular: Tensor = torch.linalg.svdvals(features)
    return exp_entropy(singular, RANKME_EPS)


@torch.no_grad()
def relative_spectrum(features: Tensor) -> Tensor:
    """Return the singular values of centred (N, ...) features, the largest is 1; none of features
    that are not finite."""
    rows = _as_single(features.flatten(1))
    if not rows.isfinite().all():
        return rows.new_zeros(0)
    singular: Tensor = torch.linalg.svdvals(rows - rows.mean(dim=0))
    return singular / singular.max().clamp(min=torch.finfo(singular.dtype).tiny)


def _as_single(features: Tensor) -> Tensor:
    """Convert to at least single precision."""
    return features.to(torch.promote_types(features.dtype, torch.float32))
