"""The info-NCE loss: tell the positive of each anchor from all other candidates.

    l_i = -log( exp(s(a_i, c_p(i)) / T) / sum_k exp(s(a_i, c_k) / T) ),   s = cosine

It is a cross entropy over similarities, so log-sum-exp keeps it finite at any
temperature.

Candidates are those of all ranks, so the matrix of similarities grows with the number of
ranks. A small one is torch's business. A large one is never held whole: some anchors at a time
meet all candidates, and leave behind their share of the gradient, which is as large as the
embeddings. That costs no more multiplications than a backward pass, which then has only to
scale it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F

# Similarities of which torch may keep some copies for the backward pass: 16 MB of float32 each.
SMALL = 2**22
# Similarities that are held at once: 64 MB of float32.
AT_ONCE = 2**24


def info_nce(
    anchors: Tensor,
    candidates: Tensor,
    pairs: Sequence[tuple[Tensor, Tensor | None]],
    temperature: float,
) -> Tensor:
    """The mean of l_i over the anchors and the pairs.

    anchors (A, D) and candidates (C, D) have unit length. A pair: positives (A,) holds each
    anchor's candidate; excluded (A, E), if given, candidates that do not count: the anchor
    itself, where candidates contain the anchors.
    """
    if anchors.shape[0] * candidates.shape[0] <= SMALL:
        logits = anchors @ candidates.T / temperature
        losses = [
            F.cross_entropy(
                logits if excluded is None else logits.scatter(1, excluded, -math.inf), positives
            )
            for positives, excluded in pairs
        ]
    else:
        losses = [
            info_nce_in_parts(anchors, candidates, positives, temperature, excluded)
            for positives, excluded in pairs
        ]
    return losses[0] if len(losses) == 1 else torch.stack(losses).mean()


def info_nce_in_parts(
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
        for rows in _rows_at_once(len(anchors), len(candidates)):
            logits = anchors[rows] @ candidates.T / temperature
            # -inf is exp(-inf) = 0 in the sum.
            log_p = logits.scatter_(1, excluded[rows], float("-inf")).log_softmax(dim=1)
            of_positives = log_p.gather(1, positives[rows, None])
            parts.append(-of_positives)
            if wanted:
                slope = log_p.exp_()  # softmax, less 1 at the positive
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


def _rows_at_once(rows: int, columns: int) -> list[slice]:
    size = max(1, AT_ONCE // columns)
    return [slice(first, first + size) for first in range(0, rows, size)]
