"""Average precision of each class.

All images are ranked by their score for the class. With P(i) the share of the class's images among
the first i, and M the number of the class's images:

    AP = 1 / M  *  sum over its images, at rank i, of P(i)

Images of equal score all get the last of their ranks. `interpolated`, as in VOC since 2010 and in
VISSL: P(i) is replaced by the maximum of P(j) over j >= i. Without it the result is scikit-learn's.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sslengine.errors import DataError

# Scores that are sorted at a time.
BLOCK = 2**25


def average_precision(scores: Tensor, targets: Tensor, interpolated: bool = True) -> Tensor:
    """From 0 to 1 for each class, in float64.

    scores, targets: images x classes. targets: 1, 0, or below 0 if unknown: then the image is
    ignored for the class. NaN: the class has no image, or a score is NaN.
    """
    if scores.shape != targets.shape or scores.ndim != 2:
        raise DataError(
            f"average precision: expected a score and an indicator for each image and class, got "
            f"{tuple(scores.shape)} and {tuple(targets.shape)}."
        )
    if not len(scores):
        return scores.new_full(scores.shape[1:], float("nan"), dtype=torch.float64)
    columns = max(1, BLOCK // len(scores))
    pairs = zip(scores.split(columns, dim=1), targets.split(columns, dim=1), strict=True)
    return torch.cat([_of_columns(some, wanted, interpolated) for some, wanted in pairs])


def _of_columns(scores: Tensor, targets: Tensor, interpolated: bool) -> Tensor:
    ranked, order = scores.sort(dim=0, descending=True)
    wanted = targets.gather(0, order)
    hits, known = (wanted > 0).double(), (wanted >= 0).double()
    precision = hits.cumsum(0) / known.cumsum(0).clamp(min=1)
    precision = precision.gather(0, _last_of_equal(ranked))
    if interpolated:
        precision = precision.flip(0).cummax(0).values.flip(0)
    found = (precision * hits).sum(0) / hits.sum(0)
    return found.masked_fill(scores.isnan().any(0), float("nan"))


def _last_of_equal(ranked: Tensor) -> Tensor:
    """For each rank the last one that has the same score."""
    ranks = torch.arange(len(ranked), device=ranked.device).unsqueeze(1).expand(ranked.shape)
    last = torch.ones_like(ranked, dtype=torch.bool)
    last[:-1] = ranked[:-1] != ranked[1:]
    return ranks.masked_fill(~last, len(ranked)).flip(0).cummin(0).values.flip(0)
