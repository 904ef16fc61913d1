"""LARS as in Barlow Twins: SGD with updates of each layer in proportion to its norm.

    g <- g + weight_decay * p
    g <- g * eta * |p| / |g|        where |p| > 0 and |g| > 0
    m <- momentum * m + g
    p <- p - lr * m

You, Gitman, Ginsburg: Large batch training of convolutional networks (1708.03888).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sslengine.distributed.sharding import local, norms
from sslengine.optim.layerwise import LayerwiseRates
from sslengine.optim.optimizers import SGD
from sslengine.registry import register_optimizer


@register_optimizer("lars")
class LARS(LayerwiseRates, SGD):
    def __init__(
        self,
        params: Any,
        lr: float = 0.1,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        eta: float = 0.001,
        exclude_bias_and_norm: bool = False,
        fused: bool | None = None,
    ) -> None:
        """exclude_bias_and_norm: parameters with one dimension are updated by plain SGD."""
        super().__init__(params, lr=lr, momentum=momentum, weight_decay=weight_decay, fused=fused)
        self.eta = eta
        self.exclude_bias_and_norm = exclude_bias_and_norm

    def _rates(
        self, params: list[Tensor], grads: list[Tensor], lr: float, weight_decay: float
    ) -> tuple[list[Tensor], Tensor]:
        if weight_decay:
            shares = [local(g) for g in grads], [local(p) for p in params]
            torch._foreach_add_(*shares, alpha=weight_decay)
        if self.exclude_bias_and_norm:
            grads = [g for p, g in zip(params, grads, strict=True) if p.ndim != 1]
            params = [p for p in params if p.ndim != 1]
        if not params:
            return [], torch.empty(0)
        size, length = norms(params, grads)
        return grads, torch.where((size > 0) & (length > 0), self.eta * size / length, 1.0)
