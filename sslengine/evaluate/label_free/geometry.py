"""How features lie on the sphere, on how many dimensions, in which clusters, near which others.

Alignment and uniformity (Wang and Isola, 2020), of features of unit length.

alignment    the mean of |f(x) - f(x+)|^2 over all pairs of views of an image: 0 if views are equal
uniformity   log of the mean of exp(-2 |f_i - f_j|^2) over all pairs of images: 0 if features are
             equal, about -4 for uniform directions in many dimensions

two_nn (Facco et al., 2017): the dimension of the surface that features lie on. With r_1 and r_2
the distances of a row to its two nearest others, the maximum likelihood estimate is
N / sum log(r_2 / r_1). Rows that have an equal one (r_1 = 0) are left out; `left_out` counts them.
CLID takes a high dimension for good, IdEst a low one.

id_est (Mordacq et al., 2026): the dimension of features, by the length of spanning trees. The
minimum spanning tree of n rows has a length that grows as n^((d - 1) / d). The slope s of log
length over log n, for SIZES sizes from a tenth of the rows to all and DRAWS draws of each, gives
d = 1 / (1 - s). Its authors find that low values belong to good linear probes. Sizes and draws are
not theirs: values compare with each other, not with the paper's.

cluster_learnability    features of unit length are put into int(sqrt(N)) clusters by k-means; of
                        the rows of each cluster, one half predicts the clusters of the other by
                        the nearest neighbour: the share of right clusters
clid                    (Lu et al., 2022) cluster_learnability + two_nn / D of the same features;
                        `clid_over` several checkpoints it is the sum of both as z-scores
self_cluster            (Tsitsulin et al., 2023) do directions lie in few clusters? With W the rows
                        of unit length, it is |W W^T|_F^2 between what is expected of uniform
                        directions, N + N (N - 1) / D, which counts as 0, and N^2 of equal ones, 1
view_consistency        how many of an image's K nearest images, by the cosine, stay in another view
checkpoint_consistency  the same of two checkpoints: how much the neighbourhoods still move
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from sslengine.evaluate.knn import nearest, search
from sslengine.evaluate.label_free.metric import Undefined, register_metric
from sslengine.evaluate.label_free.spectrum import directions, expect_different, once_per_tensor

# Similarities in memory at once: 128 MB.
BLOCK = 2**24


@register_metric("alignment", best="low")
def alignment(views: Tensor) -> float:
    count = views.shape[1]
    if count < 2:
        raise Undefined("it needs 2 views of each image or more")
    rows = directions(views)
    around = (rows - rows.mean(dim=1, keepdim=True)).square().sum(dim=(1, 2))
    # The squared distances of all pairs add up to count times the ones from the mean.
    return (2 * around / (count - 1)).mean().item()


@register_metric("uniformity", best="low")
def uniformity(features: Tensor) -> float:
    rows, total = directions(features), 0.0
    for start in range(0, len(rows), step := max(1, BLOCK // len(rows))):
        block = rows[start : start + step]
        # |a - b|^2 = 2 - 2ab. Each pair once: columns after the row.
        pairs = (4 * (block @ rows[start:].T) - 4).exp().triu(diagonal=1)
        total += pairs.sum().item()
    return math.log(total / (len(rows) * (len(rows) - 1) / 2))


LEAST_ROWS = 10


@register_metric("two_nn")
def two_nn(features: Tensor) -> tuple[float, dict[str, float]]:
    if len(features) < LEAST_ROWS:
        raise Undefined(f"it needs {LEAST_ROWS} rows, there are {len(features)}")
    # By differences: what `nearest` compares is rounded.
    far = [(features - features[each]).norm(dim=1) for each in nearest(features, 2).T]
    first, second = far[0].minimum(far[1]), far[0].maximum(far[1])
    apart = first > 0
    used = int(apart.sum())
    if used < LEAST_ROWS:
        raise Undefined(f"only {used} rows have no equal one, it needs {LEAST_ROWS}")
    total = (second[apart] / first[apart]).log().sum()
    if not total:
        raise Undefined("the two nearest rows of each are equally far")
    return used / total.item(), {"left_out": float(len(features) - used)}


# All distances are in memory: 72 MB.
MOST_ROWS, LEAST_OF_TREES = 3_000, 100
SIZES, DRAWS = 8, 5


@register_metric("id_est", best="low")
def id_est(features: Tensor) -> tuple[float, dict[str, float]]:
    if len(features) < LEAST_OF_TREES:
        raise Undefined(f"it needs {LEAST_OF_TREES} rows, there are {len(features)}")
    draw = np.random.default_rng(0)
    if len(features) > MOST_ROWS:
        chosen = np.sort(draw.choice(len(features), MOST_ROWS, replace=False))
        features = features[torch.from_numpy(chosen).to(features.device)]
    expect_different(features)
    far = distances(features)
    rows = len(far)
    sizes = [round(each) for each in np.geomspace(rows / 10, rows, SIZES)]
    lengths = [_mean_length(far, size, draw) for size in sizes]
    if min(lengths) <= 0:
        raise Undefined("the rows of a sub-sample are all equal")
    slope = float(np.polyfit(np.log(sizes), np.log(lengths), 1)[0])
    if slope >= 1:
        raise Undefined(f"the lengths grow as n^{slope:.2f}; no dimension gives 1 or more")
    return 1 / (1 - slope), {"slope": slope, "rows": float(rows)}


def distances(features: Tensor) -> NDArray[np.float64]:
    """(N, N)."""
    centred = features - features.mean(dim=0)
    found: NDArray[np.float64] = torch.cdist(centred, centred).cpu().numpy()
    np.fill_diagonal(found, 0.0)
    return found


def tree_length(far: NDArray[np.float64]) -> float:
    """Prim's algorithm on a full matrix; an edge of length 0 is an edge."""
    total, new = 0.0, 0
    left, inside = np.full(len(far), math.inf), np.zeros(len(far))  # inside: infinity, else 0
    for _ in range(len(far) - 1):
        left[new] = inside[new] = math.inf
        np.minimum(left, far[new] + inside, out=left)
        new = int(left.argmin())
        total += float(left[new])
    return total


def _mean_length(far: NDArray[np.float64], size: int, draw: np.random.Generator) -> float:
    if size == len(far):  # every draw has all rows
        return tree_length(far)
    chosen = (draw.choice(len(far), size, replace=False) for _ in range(DRAWS))
    return float(np.mean([tree_length(far[each][:, each]) for each in chosen]))


# ---- clusters and neighbours

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
