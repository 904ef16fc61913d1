"""k-means by Euclidean distance: Lloyd's algorithm from random points, in bounded memory.

A cluster that loses all its points gets the point that is farthest from its centroid.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sslengine.errors import DataError

# Distances in memory at a time: 256 MB of float32.
BLOCK = 2**26


@torch.no_grad()
def kmeans(points: Tensor, clusters: int, iterations: int, seed: int = 0) -> Tensor:
    """The centroids, (clusters, D)."""
    if not 1 <= clusters <= len(points):
        raise DataError(f"k-means: {clusters} clusters of {len(points)} points.")
    draw = torch.Generator().manual_seed(seed)
    centroids = points[torch.randperm(len(points), generator=draw)[:clusters].to(points.device)]
    for _ in range(iterations):
        nearest, distances = assign(points, centroids)
        sums = torch.zeros_like(centroids).index_add_(0, nearest, points)
        counts = nearest.bincount(minlength=clusters)
        moved = sums / counts.clamp(min=1).unsqueeze(1)
        empty = (counts == 0).nonzero().flatten()
        moved[empty] = points[distances.topk(len(empty)).indices]
        if torch.equal(moved, centroids):
            break
        centroids = moved
    return centroids


def assign(points: Tensor, centroids: Tensor) -> tuple[Tensor, Tensor]:
    """Find the number of each point's nearest centroid, and its squared distance."""
    squares = centroids.square().sum(dim=1)
    nearest, distances = [], []
    for some in points.split(max(1, BLOCK // len(centroids))):
        found = (squares - 2 * some @ centroids.T).min(dim=1)
        nearest.append(found.indices)
        distances.append((found.values + some.square().sum(dim=1)).clamp(min=0))
    return torch.cat(nearest), torch.cat(distances)
