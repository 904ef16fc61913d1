"""Sinkhorn-Knopp: assign the samples of all ranks to prototypes with given shares.

Caron et al., Unsupervised Learning of Visual Features by Contrasting Cluster Assignments,
2020, equations 3 to 5. From scores s of samples b and prototypes k

    Q_bk = exp(s_bk / epsilon)
    repeat:  Q_bk *= r_k / sum_b Q_bk        every prototype gets its share r_k of the samples
             Q_bk *= 1 / sum_k Q_bk          the row of every sample sums to 1

It is computed with logarithms: there is no overflow at any epsilon, and a prototype that is far
from every sample still gets its share. The sum of the shares has no effect: the second line
divides by it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sslengine.distributed.collectives import max_in_place, sum_in_place
from sslengine.distributed.ranks import world_size


def sinkhorn(
    scores: Tensor,
    epsilon: float,
    iterations: int,
    shares: Tensor | None = None,
    counted: Tensor | None = None,
    added: float = 0.0,
) -> Tensor:
    """Q of this rank's samples, without gradient: each row is a distribution.

    scores (..., B, K): leading dimensions are separate problems, which share the two collectives
        per iteration.
    shares (K,): of each prototype; None: equal.
    counted (..., B): samples that are false get a row but have no weight.
    added: to all sums but the first, of scores that are not scaled yet. A row then sums to less
        than 1, far less where its sample is far from every prototype.
    """
    log_q = scores.detach() / epsilon
    more = log_q.new_full((), added).log() if added else None
    for turn in range(iterations):
        ours = log_q if counted is None else log_q.masked_fill(~counted.unsqueeze(-1), -torch.inf)
        mass = _log_mass(ours)
        mass = mass if more is None or turn == 0 else mass.logaddexp(more)
        log_q = log_q - (mass if shares is None else mass - shares.log())
        if more is None:
            log_q = log_q.log_softmax(dim=-1)
        else:
            log_q = log_q - log_q.logsumexp(-1, keepdim=True).logaddexp(more)
    return log_q.softmax(dim=-1) if more is None else log_q.exp()


def power_law(prototypes: int, exponent: float, like: Tensor) -> Tensor:
    """Shares 1 / k ** exponent for prototypes k = 1, 2, ...; equal ones at exponent 0."""
    ranks = torch.arange(1, prototypes + 1, device=like.device, dtype=like.dtype)
    shares = ranks.pow(-exponent)
    return shares / shares.sum()


def _log_mass(log_q: Tensor) -> Tensor:
    """log sum_b Q_bk over the samples of all ranks, (..., 1, K); bit-equal on all ranks.

    Two reductions, whose size, unlike that of a gather, does not depend on the number of ranks.
    """
    own = log_q.logsumexp(dim=-2, keepdim=True)
    if world_size() == 1:
        return own
    largest = max_in_place(own.clone())
    return largest + sum_in_place((own - largest).exp()).log()
