"""Cross entropy at hidden patches, and centred targets (iBOT, DINOv2).

With p the target of a hidden patch and q the prediction,

    loss = mean over images of the mean over the image's hidden patches of - sum_k p_k log q_k

An image without hidden patches counts with 0.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from sslengine.distributed.collectives import sum_in_place
from sslengine.distributed.ranks import world_size


def masked_cross_entropy(targets: Tensor, log_q: Tensor, mask: Tensor, at: Tensor) -> Tensor:
    """targets, log_q (M, K): of the hidden patches, whose numbers in the flat mask are `at`.

    mask (N, L) or (N, rows, columns): true where hidden.
    """
    hidden = mask.flatten(1)
    shares = 1.0 / hidden.sum(dim=1).clamp(min=1).to(log_q.dtype)
    of_each = -(targets * log_q).sum(dim=-1) * shares.index_select(0, at // hidden.shape[1])
    return of_each.sum() / len(mask)


class Center(nn.Module):
    """The running mean of a teacher's scores over all ranks, which targets are centred by."""

    center: Tensor

    def __init__(self, scores: int, momentum: float) -> None:
        super().__init__()
        self.momentum = momentum
        self.register_buffer("center", torch.zeros(1, scores))

    def targets(self, scores: Tensor, temperature: float, step: Any = None) -> Tensor:
        """Return softmax((scores - center) / temperature); then move, if a train step is given."""
        targets = ((scores - self.center) / temperature).softmax(dim=-1)
        if step is not None and step.train:
            self.move(scores)
        return targets

    def move(self, scores: Tensor) -> None:
        move_center(self.center, scores, self.momentum)


@torch.no_grad()
def move_center(center: Tensor, scores: Tensor, momentum: float) -> None:
    """Move the centre (1, K) towards the mean of scores (..., K); without any it stays.

    The mean over ranks counts each row once; ranks may have unlike many.
    """
    rows = scores.flatten(0, -2)
    if world_size() == 1:
        if len(rows):
            mean = rows.sum(dim=0) / len(rows)
            center.lerp_(mean.to(center.dtype), 1.0 - momentum)
        return
    total = torch.cat([rows.sum(dim=0), rows.new_full((1,), float(len(rows)))])
    total = sum_in_place(total.to(center.dtype))
    count = total[-1]
    mean = total[:-1] / count.clamp(min=1.0)
    center.lerp_(mean, (count > 0).to(mean.dtype) * (1.0 - momentum))
