"""Cluster learnability, and CLID (Lu et al., 2022), which adds the intrinsic dimension to it.

cluster_learnability  features of unit length are put into int(sqrt(N)) clusters by k-means; of the
                      rows of each cluster, one half predicts the clusters of the other by the
                      nearest neighbour: the share of right clusters
clid                  cluster_learnability + two_nn / D of the same features, for one checkpoint;
                      `clid_over` several it is the sum of both as z-scores
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sslengine.evaluation.label_free.metric import Undefined, register_metric
from sslengine.evaluation.label_free.spectrum import directions, once_per_tensor
from sslengine.evaluation.label_free.two_nn import two_nn
from sslengine.evaluation.neighbours import search

LEAST_CHECKPOINTS = 3


@register_metric("cluster_learnability", best="high")
def cluster_learnability(features: Tensor) -> float:
    return _learnability(features).item()


@register_metric("clid", best="high")
def clid(features: Tensor) -> tuple[float, dict[str, float]]:
    learnability = _learnability(features).item()
    dimension = two_nn(directions(features))
    if not dimension.defined:
        raise Undefined(dimension.why)
    details = {"learnability": learnability, "dimension": dimension.value}
    return learnability + dimension.value / features.shape[1], details


def clid_over(parts: Sequence[tuple[float, float]]) -> list[float]:
    """For each checkpoint, of its learnability and dimension: the sum of their z-scores."""
    if len(parts) < LEAST_CHECKPOINTS:
        return [math.nan] * len(parts)
    values = np.array(parts, float)
    scale = values.std(axis=0)
    # A part in which all checkpoints are equal orders none of them.
    centred = (values - values.mean(axis=0)) / np.where(scale > 0, scale, 1.0)
    found: list[float] = centred.sum(axis=1).tolist()
    return found


@once_per_tensor
def _learnability(features: Tensor) -> Tensor:
    if len(features) < 4:
        raise Undefined(f"it needs 4 rows, there are {len(features)}")
    rows = directions(features)
    clusters = _clusters(rows)
    if int(clusters.max()) == int(clusters.min()):
        raise Undefined("all features have one direction, which is one cluster")
    taught = _one_half(clusters)
    if taught.all():
        raise Undefined("no cluster has two rows")
    known, asked = rows[taught], rows[~taught]
    first = search(known, asked, 1, "dot").rows[:, 0]
    right = clusters[taught][first] == clusters[~taught]
    return right.double().mean()


def _clusters(rows: Tensor) -> Tensor:
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():  # fewer directions than clusters
        warnings.simplefilter("ignore", ConvergenceWarning)
        kmeans: Any = KMeans  # its package has no types
        found = kmeans(math.isqrt(len(rows)), n_init=1, random_state=0).fit(rows.cpu().numpy())
    return torch.from_numpy(found.labels_).long().to(rows.device)


def _one_half(clusters: Tensor) -> Tensor:
    """True for every second row of each cluster, in a random order; the first one always."""
    order = torch.randperm(len(clusters), generator=torch.Generator().manual_seed(0))
    order = order.to(clusters.device)
    order = order[clusters[order].argsort(stable=True)]
    by_cluster = clusters[order]
    starts = torch.searchsorted(by_cluster, by_cluster)
    chosen = torch.empty_like(by_cluster, dtype=torch.bool)
    chosen[order] = (torch.arange(len(order), device=order.device) - starts) % 2 == 0
    return chosen
