"""Second-order statistics of embeddings, over the images of all ranks, with gradient.

`views` is (V, B, D): V views of this rank's B images. Ranks exchange only sums: the D means and
variances, and the D x D matrix. So the communication and the work of a rank do not depend on the
number of ranks.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from sslengine.distributed.collectives import sum_over_ranks
from sslengine.distributed.ranks import world_size


def centred(views: Tensor) -> tuple[Tensor, Tensor]:
    """The embeddings less the mean of their view, and the number of images on all ranks."""
    # The count is reduced together with the sums, since it differs between ranks in evaluation. It
    # is a tensor on the device: no host synchronisation.
    images = views.new_full((1,), float(views.shape[1]))
    sums = sum_over_ranks(torch.cat([views.sum(dim=1).flatten(), images]))
    count = sums[-1].detach()
    means = sums[:-1].view(views.shape[0], 1, views.shape[2]) / count
    return views - means, count


def covariance(views: Tensor) -> Tensor:
    """(V, D, D): of each view the sum over n images of (z - mean)(z - mean)^T, over n - 1.

    A single image has no covariance: zeros.
    """
    rows, count = centred(views)
    return sum_over_ranks(rows.mT @ rows) / (count - 1).clamp(min=1)


def variance_and_covariance(views: Tensor, gamma: float, eps: float) -> tuple[Tensor, Tensor]:
    """VICReg's terms: the mean of max(0, gamma - deviation) over views and dimensions, and the sum
    of squared covariances of different dimensions over D."""
    matrices = covariance(views)
    deviations = (matrices.diagonal(dim1=1, dim2=2) + eps).sqrt()
    correlated = off_diagonal(matrices).square().sum() / views.shape[2]
    return F.relu(gamma - deviations).mean(), correlated


def cross_correlation(views: Tensor, eps: float) -> Tensor:
    """(D, D): the correlation of each dimension of view 0 with each of view 1.

    eps is added to the variances, so that a dimension that does not vary correlates with
    nothing.
    """
    images = views.shape[1]
    if world_size() == 1 and images > 1:  # batch_norm is one kernel forward and one backward
        first, second = (F.batch_norm(each, None, None, training=True, eps=eps) for each in views)
        return first.T @ second / images
    rows, count = centred(views)
    variance = sum_over_ranks(rows.square().sum(dim=1, keepdim=True)) / count
    first, second = rows * (variance + eps).rsqrt()
    return sum_over_ranks(first.T @ second) / count


def off_diagonal(matrices: Tensor) -> Tensor:
    """The entries of (..., D, D) outside the diagonal, as a view of shape (..., D - 1, D)."""
    width = matrices.shape[-1]
    # In the flattened matrix without its first entry, every (D + 1)th entry is on the diagonal.
    rest = matrices.flatten(-2)[..., 1:]
    rows: Tensor = rest.unflatten(-1, (width - 1, width + 1))
    return rows[..., :-1]
