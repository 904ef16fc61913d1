"""The nearest rows of each row, exact, in blocks."""

from __future__ import annotations

import torch
from torch import Tensor

# Similarities in memory at once: 128 MB.
BLOCK = 2**24


def nearest(features: Tensor, k: int) -> Tensor:
    """Of each row the k nearest others by Euclidean distance, (N, k), nearest first."""
    features = features - features.mean(dim=0)  # less is lost below
    squares, found = features.square().sum(dim=1), []
    for start in range(0, len(features), _rows(features)):
        block = features[start : start + _rows(features)]
        # |a - b|^2 without |a|^2, which does not change the order.
        far = squares - 2 * block @ features.T
        own = torch.arange(len(block), device=features.device)
        far[own, start + own] = torch.inf
        found.append(far.topk(k, dim=1, largest=False).indices)
    return torch.cat(found)


def nearest_of(rows: Tensor, others: Tensor) -> Tensor:
    """The number of the row of `others` with the largest inner product; of equal ones the first."""
    return torch.cat([(part @ others.T).argmax(dim=1) for part in rows.split(_rows(others))])


def _rows(columns: Tensor) -> int:
    return max(1, BLOCK // len(columns))
