"""Layer-wise rates: rescale each parameter's gradient before another optimizer uses it.

LARS and LARC differ only in the rate. Both count weight decay as part of the gradient, so the
base optimizer gets a weight decay of 0.

The code never waits for the device: norms and rates are tensors. With a fused base optimizer, the
gradient scaler's `grad_scale` and `found_inf` stay on the device too: this class unscales the
gradients, and the fused kernel skips the step after an overflow.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from sslengine.distributed.sharding import local
from sslengine.optim.scale_each import ScaleEach


class LayerwiseRates(torch.optim.Optimizer):
    """A mixin that precedes an optimizer class in the bases: `class LARS(LayerwiseRates, SGD)`."""

    def __init__(self, *args: Any, **arguments: Any) -> None:
        super().__init__(*args, **arguments)
        self._scale_each = ScaleEach()

    @abstractmethod
    def _rates(
        self, params: list[Tensor], grads: list[Tensor], lr: float, weight_decay: float
    ) -> tuple[list[Tensor], Tensor]:
        """Add weight_decay * params to grads in place; return gradients to rescale, and rates.

        For sharded parameters, `local` returns the local shard, which can be changed in place, and
        `norms` the norms of the whole tensors.
        """

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._rescale()
        if hasattr(self, "grad_scale"):
            self.grad_scale = None
        weight_decays = [group.get("weight_decay", 0.0) for group in self.param_groups]
        try:
            self._set_weight_decays([0.0] * len(weight_decays))
            self._without_hooks(super().step)()
        finally:
            self._set_weight_decays(weight_decays)
        return loss

    def _without_hooks(self, step: Any) -> Callable[[], Any]:
        """Unwrap `step`: torch wraps it in each class to run step hooks, which must run once."""
        return partial(step.__wrapped__, self) if getattr(step, "hooked", False) else step

    def _rescale(self) -> None:
        rescaled, rates = [], []
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            if not params:
                continue
            grads = [p.grad for p in params]
            scale = getattr(self, "grad_scale", None)
            if scale is not None:
                torch._foreach_mul_([local(each) for each in grads], scale.reciprocal())
            own, its = self._rates(params, grads, group["lr"], group.get("weight_decay", 0.0))
            if own:
                rescaled += [local(each) for each in own]
                rates.append(its)
        if rescaled:
            self._scale_each(rescaled, torch.cat(rates))

    def _set_weight_decays(self, values: list[float]) -> None:
        for group, value in zip(self.param_groups, values, strict=True):
            group["weight_decay"] = value
