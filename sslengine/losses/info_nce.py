"""The info-NCE loss: tell the positive of each anchor from all other candidates.

    l_i = -log( exp(s(a_i, c_p(i)) / T) / sum_k exp(s(a_i, c_k) / T) ),   s = cosine

It is a cross entropy over similarities, so log-sum-exp keeps it finite at any
temperature.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F


def info_nce(
    anchors: Tensor,
    candidates: Tensor,
    positives: Tensor,
    temperature: float,
    excluded: Tensor | None = None,
) -> Tensor:
    """The mean of l_i over the anchors.

    anchors (A, D) and candidates (C, D) have unit length. positives (A,) holds each
    anchor's candidate; excluded (A,) or (A, E), if given, candidates that do not count:
    the anchor itself, where candidates contain the anchors.
    """
    logits = anchors @ candidates.T / temperature
    if excluded is not None:
        # -inf is exp(-inf) = 0 in the sum; scatter keeps the gradient of all other entries.
        logits = logits.scatter(1, excluded.view(len(anchors), -1), float("-inf"))
    return F.cross_entropy(logits, positives)
