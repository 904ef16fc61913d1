"""Predict from one crop of an image the target of another crop.

mean over targets a, crops v other than a's own, and images b of
    - sum_k target_abk log p_vbk
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def swapped_prediction(targets: Tensor, log_p: Tensor, sources: Sequence[int]) -> Tensor:
    """The mean cross entropy.

    targets (A, B, K): distributions, computed from the crops with the numbers `sources`.
    log_p (V, B, K): the logarithm of each crop's prediction.
    """
    crops, images = log_p.shape[:2]
    # One matrix product for all pairs, without copies of targets and log_p: K is large.
    pairs = torch.einsum("abk,vbk->av", targets, log_p)
    own = torch.zeros_like(pairs, dtype=torch.bool)
    for row, source in enumerate(sources):
        own[row, source].fill_(True)  # `= True` would copy a host tensor to the device
    return -pairs.masked_fill(own, 0.0).sum() / (len(sources) * (crops - 1) * images)
