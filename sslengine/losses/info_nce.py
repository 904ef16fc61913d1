"""The info-NCE loss: classify the positive of each anchor among all candidates.

    l_i = -log( exp(s(a_i, c_p(i)) / T) / sum_k exp(s(a_i, c_k) / T) ),   s = cosine

It is a cross entropy over similarities; log-sum-exp keeps it finite at any temperature.

Candidates come from all ranks, so the matrix of similarities grows with the number of ranks. A
small matrix is left to autograd. A large one is computed in blocks of anchors, and the gradient
of each block is computed at once and added up. It has the size of the embeddings, so the whole
matrix is never in memory. The backward pass then only scales this gradient; the number of
multiplications is the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F

# Elements of a small matrix, which autograd may keep several copies of: 16 MB of float32 each.
SMALL = 2**22
# Elements of a block: 64 MB of float32.
BLOCK = 2**24


def info_nce(
    anchors: Tensor,
    candidates: Tensor,
    pairs: Sequence[tuple[Tensor, Tensor | None]],
    temperature: float,
) -> Tensor:
    """The mean of l_i over the anchors and the pairs.

    anchors (A, D) and candidates (C, D) have unit length. A pair: positives (A,), the index of each
    anchor's positive; excluded (A, E) or None, candidates to leave out of the sum, such as the
    anchor itself.
    """
    if anchors.shape[0] * candidates.shape[0] <= SMALL:
        logits = anchors @ candidates.T / temperature
    else:
        logits = None
    losses = []
    for positives, excluded in pairs:
        if logits is None:
            loss = info_nce_in_blocks(anchors, candidates, positives, temperature, excluded)
        elif excluded is None:
            loss = F.cross_entropy(logits, positives)
        else:
            loss = F.cross_entropy(logits.scatter(1, excluded, -math.inf), positives)
        losses.append(loss)
    return losses[0] if len(losses) == 1 else torch.stack(losses).mean()


def info_nce_in_blocks(
    anchors: Tensor,
    candidates: Tensor,
    positives: Tensor,
    temperature: float,
    excluded: Tensor | None,
) -> Tensor:
    out = positives.new_empty(len(anchors), 0) if excluded is None else excluded
    return cast(
        Tensor,
        _InfoNCE.apply(  # type: ignore[no-untyped-call]
            anchors, candidates, positives, temperature, out
        ),
    )


class _InfoNCE(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        anchors: Tensor,
        candidates: Tensor,
        positives: Tensor,
        temperature: float,
        excluded: Tensor,
    ) -> Tensor:
        wanted = any(ctx.needs_input_grad[:2])
        to_anchors, to_candidates = torch.empty_like(anchors), torch.zeros_like(candidates)
        parts = []
        for rows in _blocks(len(anchors), len(candidates)):
            logits = anchors[rows] @ candidates.T / temperature
            log_p = logits.scatter_(1, excluded[rows], float("-inf")).log_softmax(dim=1)
            of_positives = log_p.gather(1, positives[rows, None])
            parts.append(-of_positives)
            if wanted:
                slope = log_p.exp_()  # softmax, minus 1 at the positive
                slope.scatter_(1, positives[rows, None], of_positives.exp() - 1)
                slope /= temperature * len(anchors)
                to_anchors[rows] = slope @ candidates
                to_candidates.addmm_(slope.T, anchors[rows])
        if wanted:
            ctx.save_for_backward(to_anchors, to_candidates)
        return torch.cat(parts).mean()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        return (*(grad * each for each in ctx.saved_tensors), None, None, None)


def _blocks(rows: int, columns: int) -> list[slice]:
    size = max(1, BLOCK // columns)
    return [slice(first, first + size) for first in range(0, rows, size)]
