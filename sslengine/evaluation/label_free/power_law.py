"""alpha-ReQ (Agrawal et al., 2022): how fast the variances of features decay, v_i ~ i^-alpha.

A weighted least squares line through (log i, log v_i), i from 11 to 100, with weights 1/i; `r2` is
how well it fits. With fewer dimensions than 101 the last one is left out. Values near 1 are read as
good. A collapsed spectrum is no power law.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sslengine.evaluation.label_free.metric import Undefined, register_metric
from sslengine.evaluation.label_free.spectrum import variances

FIRST, LAST = 11, 100
LEAST_POINTS = 10


@register_metric("alpha_req", best="near 1")
def alpha_req(features: Tensor) -> tuple[float, dict[str, float]]:
    found = variances(features)
    positive = int((found > 0).sum())
    last = min(LAST, positive - 1)
    if len(features) <= LAST or last - FIRST + 1 < LEAST_POINTS:
        raise Undefined(
            f"it needs more than {LAST} rows and {FIRST + LEAST_POINTS} dimensions in which "
            f"they differ; there are {len(features)} and {positive}"
        )
    ranks = torch.arange(FIRST, last + 1, dtype=found.dtype, device=found.device)
    x, y, weights = -ranks.log(), (found[FIRST - 1 : last] / found.sum()).log(), 1 / ranks
    x_mean, y_mean = ((weights * each).sum() / weights.sum() for each in (x, y))
    alpha = (weights * (x - x_mean) * (y - y_mean)).sum() / (weights * (x - x_mean) ** 2).sum()
    rest = y - y_mean - alpha * (x - x_mean)
    r2 = 1 - rest.square().sum() / (y - y.mean()).square().sum()
    return alpha.item(), {"r2": r2.item(), "last": float(last)}
