"""LiDAR (Thilak et al., 2024): how many dimensions tell images apart, augmentations being noise.

Each image is a class, its augmented views are the members. With the covariance S_b of the images'
means and S_w of the views around them, DELTA added to its diagonal, the eigenvalues of
S_w^-1/2 S_b S_w^-1/2 count as in RankMe. From 1 to min(D, n - 1).
"""

from __future__ import annotations

import torch
from torch import Tensor

from sslengine.evaluation.label_free.metric import Undefined, register_metric
from sslengine.evaluation.label_free.spectrum import RANKME_EPS, exp_entropy, expect_different

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
