"""Coherence (Tsitsulin et al., 2023): does a single image have its own dimension?

N / r max_i |U_i|^2, with U the left singular vectors and r their number: 1 if all images count
equally in the subspace of the features, N / r if one image has a dimension alone. Vectors of
singular values that are 0 are left out: they are arbitrary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sslengine.evaluation.label_free.metric import Undefined, register_metric
from sslengine.evaluation.label_free.spectrum import rounding


@register_metric("coherence", best="low")
def coherence(features: Tensor) -> float:
    left: Tensor
    values: Tensor
    left, values, _ = torch.linalg.svd(features, full_matrices=False)
    if not values[0]:
        raise Undefined("all features are zero")
    rank = int((values > rounding(features)).sum())
    return (len(features) / rank * left[:, :rank].square().sum(dim=1).max()).item()
