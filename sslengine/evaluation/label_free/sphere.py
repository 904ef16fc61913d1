"""Alignment and uniformity (Wang and Isola, 2020), of features of unit length.

alignment    the mean of |f(x) - f(x+)|^2 over all pairs of views of an image: 0 if views are equal
uniformity   log of the mean of exp(-2 |f_i - f_j|^2) over all pairs of images: 0 if features are
             equal, about -4 for uniform directions in many dimensions
"""

from __future__ import annotations

import math

from torch import Tensor

from sslengine.evaluation.label_free.metric import Undefined, register_metric
from sslengine.evaluation.label_free.spectrum import directions

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
