"""SelfCluster (Tsitsulin et al., 2023): do directions of features lie in few clusters?

With W the rows of unit length, it is |W W^T|_F^2 between what is expected of uniform directions,
N + N (N - 1) / D, which counts as 0, and N^2 of equal directions, which counts as 1.
"""

from __future__ import annotations

from torch import Tensor

from sslengine.evaluation.label_free.metric import Undefined, register_metric
from sslengine.evaluation.label_free.spectrum import directions


@register_metric("self_cluster", best="low")
def self_cluster(features: Tensor) -> float:
    n, width = features.shape
    if width < 2:
        raise Undefined("it needs 2 dimensions or more")
    rows = directions(features)
    # |W W^T|_F = |W^T W|_F: the smaller of both.
    products = rows.T @ rows if width < n else rows @ rows.T
    expected = n + n * (n - 1) / width
    return (products.square().sum().item() - expected) / (n * n - expected)
