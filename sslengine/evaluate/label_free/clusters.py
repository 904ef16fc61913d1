"""Cluster learnability, and CLID (Lu et al., 2022), which adds the intrinsic dimension to it.

cluster_learnability  features of unit length are put into int(sqrt(N)) clusters by k-means; of the
                      rows of each cluster, one half predicts the clusters of the other by the
                      nearest neighbour: the share of right clusters
clid                  cluster_learnability + two_nn / D of the same features, for one checkpoint;
                      `clid_over` several it is the sum of both as z-scores

SelfCluster (Tsitsulin et al., 2023): do directions of features lie in few clusters?

With W the rows of unit length, it is |W W^T|_F^2 between what is expected of uniform directions,
N + N (N - 1) / D, which counts as 0, and N^2 of equal directions, which counts as 1.

How many of an image's K nearest images stay, by the cosine of the features.

view_consistency        of two augmented views of each image, among the same views of all images
checkpoint_consistency  of two checkpoints: how much the neighbourhoods still move
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sslengine.evaluate.knn import nearest, search
from sslengine.evaluate.label_free.geometry import two_nn
from sslengine.evaluate.label_free.metric import Undefined, register_metric
from sslengine.evaluate.label_free.spectrum import directions, expect_different, once_per_tensor

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
    """Sum the z-scores of each checkpoint's learnability and dimension."""
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


K = 10


@register_metric("view_consistency", best="high")
def view_consistency(views: Tensor) -> float:
    if views.shape[1] < 2:
        raise Undefined("it needs 2 views of each image")
    return _shared(views[:, 0], views[:, 1])


@register_metric("checkpoint_consistency")
def checkpoint_consistency(features: Tensor, previous: Tensor) -> float:
    if len(features) != len(previous):
        raise Undefined("the checkpoints have features of different images")
    return _shared(features, previous)


def _shared(some: Tensor, others: Tensor) -> float:
    if len(some) <= K + 1:
        raise Undefined(f"it needs more than {K + 1} images, there are {len(some)}")
    first, second = (_neighbours(each) for each in (some, others))
    both = torch.cat([first, second], dim=1).sort(dim=1).values
    return (both[:, 1:] == both[:, :-1]).sum().item() / first.numel()


def _neighbours(features: Tensor) -> Tensor:
    rows = directions(features)
    expect_different(rows)
    # On the sphere the order by distance is the one by cosine.
    return nearest(rows, K).sort(dim=1).values
