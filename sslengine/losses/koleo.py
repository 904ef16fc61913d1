"""KoLeo: spread features evenly over the sphere (Sablayrolles et al., 2018; used by DINOv2).

With z the features scaled to unit length and nn(i) the row nearest to row i, other than i,

    loss = - mean over rows i of log(|z_i - z_nn(i) + e| + e),    e = 1e-8

The Kozachenko-Leonenko estimate of their entropy grows with the logarithm of that distance. Because
of e, equal rows give a finite loss. A single row has no neighbour: its loss is 0.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from sslengine.distributed.collectives import gather

EPSILON = 1e-8


def koleo(features: Tensor, over_ranks: bool = False) -> Tensor:
    """The loss of N x D features of different images.

    over_ranks: neighbours are searched among the features of all ranks; as in DINOv2, by default
        among those of this rank only.
    """
    rows = F.normalize(features, dim=-1, eps=EPSILON)
    candidates, start = gather(rows) if over_ranks else (rows, 0)
    if len(candidates) < 2:
        return rows.sum() * 0.0
    with torch.no_grad():
        cosines = rows @ candidates.mT
        cosines.diagonal(offset=start).fill_(-2.0)
        nearest = cosines.argmax(dim=1)
    distances = F.pairwise_distance(rows, candidates.index_select(0, nearest), eps=EPSILON)
    return -(distances + EPSILON).log().mean()
