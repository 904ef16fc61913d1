"""Spherical k-means over points that are distributed over ranks.

    assign    each point belongs to the centroid with the largest inner product; on a tie, to
              the one with the lowest index
    update    a centroid becomes the sum of its points, scaled to unit length; it does not
              change if it has no points or their sum is zero

Sums go over all ranks, so the result is, up to rounding, the same for any number of ranks. It
is bit-equal on all ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from sslengine.distributed.collectives import broadcast, sum_in_place

# Inner products that are in memory at a time: 256 MB of float32.
BLOCK = 2**26


class Clusters(NamedTuple):
    centroids: Tensor  # (K, D), of unit length
    assignments: Tensor  # (P,), of this rank's points


@torch.no_grad()
def spherical_kmeans(points: Tensor, centroids: Tensor, iterations: int) -> Clusters:
    """points (P, D): those of this rank, of unit length. centroids (K, D): the initial ones, equal
    on all ranks."""
    for _ in range(iterations):
        centroids = _update(points, centroids)
    return Clusters(centroids, torch.cat([nearest for _, nearest in _assign(points, centroids)]))


def _assign(points: Tensor, centroids: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    for part in points.split(max(1, BLOCK // len(centroids))):
        yield part, (part @ centroids.T).argmax(dim=1)


def _update(points: Tensor, centroids: Tensor) -> Tensor:
    sums = torch.zeros_like(centroids)
    for part, nearest in _assign(points, centroids):
        # A matrix product: index_add_ is not deterministic on a GPU.
        members = F.one_hot(nearest, len(centroids)).to(part.dtype)
        sums += members.T @ part
    sum_in_place(sums)
    lengths = sums.norm(dim=1, keepdim=True)
    # Rounding may differ between ranks: all use rank 0's centroids.
    return broadcast(torch.where(lengths > 0, sums / lengths, centroids))
