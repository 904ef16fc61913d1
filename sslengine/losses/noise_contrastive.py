"""Noise-contrastive estimation: classify a sample's row of the memory against random rows.

Wu et al., Unsupervised Feature Learning via Non-Parametric Instance Discrimination, 2018,
with scores s = v . f / T of an embedding f and a row v:

    P(i | f) = exp(s_i) / Z                                              (eq. 4)
    h(i, f) = P(i | f) / (P(i | f) + m / n)                              (eq. 6)
    J = -log h(i, f) - sum over m drawn rows j of log(1 - h(j, f))       (eq. 7)
    Z = n / m * sum over m drawn rows j of exp(s_j)                      (eq. 8)

log h is log-sigmoid(s - log(Z m / n)), and log(1 - h) is log-sigmoid of the negative argument:
no overflow at any temperature.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F


def noise_contrastive(
    positives: Tensor, negatives: Tensor, log_partition: Tensor, num_samples: int
) -> Tensor:
    """J of each anchor. positives (A,) and negatives (A, m) are scores; n is num_samples."""
    odds = log_partition + math.log(negatives.shape[1] / num_samples)
    return -F.logsigmoid(positives - odds) - F.logsigmoid(odds - negatives).sum(dim=1)


def estimate_log_partition(negatives: Tensor, num_samples: int) -> Tensor:
    """log Z from the scores of uniformly drawn rows."""
    log_mean = torch.logsumexp(negatives.flatten(), dim=0) - math.log(negatives.numel())
    return log_mean + math.log(num_samples)
