"""Spherical k-means over points that are shared among ranks.

    assign    each point goes to the centroid with the largest inner product; of several
              equal ones to that of the lowest number
    update    a centroid becomes the sum of its points, scaled to unit length; one without
              points, or whose points cancel out, stays where it is

Sums go over all ranks, so that any number of ranks gives, up to rounding, what one with
all points gives. The result is the same on all ranks to the bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from sslengine.distributed.collectives import broadcast, sum_in_place

# Points times centroids that are compared at once: 256 MB of float32.
AT_ONCE = 2**26


class Clusters(NamedTuple):
    centroids: Tensor  # (K, D), of unit length
    assignments: Tensor  # (P,), of this rank's points


@torch.no_grad()
def spherical_kmeans(points: Tensor, centroids: Tensor, iterations: int) -> Clusters:
    """points (P, D): this rank's, of unit length; centroids (K, D): the same start on all ranks."""
    for _ in range(iterations):
        centroids = _update(points, centroids)
    return Clusters(centroids, torch.cat([nearest for _, nearest in _assign(points, centroids)]))


def _assign(points: Tensor, centroids: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    for part in points.split(max(1, AT_ONCE // len(centroids))):
        yield part, (part @ centroids.T).argmax(dim=1)


def _update(points: Tensor, centroids: Tensor) -> Tensor:
    sums = torch.zeros_like(centroids)
    for part, nearest in _assign(points, centroids):
        # A product and not index_add_, which adds in another order every time on a GPU.
        members = F.one_hot(nearest, len(centroids)).to(part.dtype)
        sums += members.T @ part
    sum_in_place(sums)
    lengths = sums.norm(dim=1, keepdim=True)
    # Ranks must not part ways for a rounding difference: rank 0's are everybody's.
    return broadcast(torch.where(lengths > 0, sums / lengths, centroids))
