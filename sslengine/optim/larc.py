"""LARC, apex's form of layer-wise rates, combined with any optimizer.

    rate = trust_coefficient * |p| / (|g| + weight_decay * |p| + eps)
    rate = min(rate / lr, 1)                      if clip
    g <- rate * (g + weight_decay * p)            where |p| > 0 and |g| > 0

A parameter whose gradient is all zeros gets no weight decay either, as in apex.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from sslengine.distributed.sharding import local, norms
from sslengine.optim.layerwise import LayerwiseRates
from sslengine.optim.options import LarcOptions


class LARC(LayerwiseRates):
    def __init__(self, params: Any, *, larc: LarcOptions, **arguments: Any) -> None:
        super().__init__(params, **arguments)
        self.larc = larc

    def _rates(
        self, params: list[Tensor], grads: list[Tensor], lr: float, weight_decay: float
    ) -> tuple[list[Tensor], Tensor]:
        size, length = norms(params, grads)
        rates = self.larc.trust_coefficient * size
        rates = rates / (length + weight_decay * size + self.larc.eps)
        if self.larc.clip:
            rates = (rates / lr).clamp(max=1.0)
        rates = torch.where(size > 0, rates, 1.0)
        rates = torch.where(length > 0, rates, 0.0)
        if weight_decay:
            shares = [local(g) for g in grads], [local(p) for p in params]
            torch._foreach_add_(*shares, alpha=weight_decay)
        return grads, rates


@cache
def with_larc(optimizer_class: type[torch.optim.Optimizer]) -> type[LARC]:
    """Return a class that applies LARC before the optimizer; the state dict does not change."""
    return type(f"LARC{optimizer_class.__name__}", (LARC, optimizer_class), {})
