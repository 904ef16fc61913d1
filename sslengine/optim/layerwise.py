"""Layer-wise rates: each parameter's gradient is rescaled before a plain optimizer uses it.

LARS and LARC differ in the rate alone. Both count weight decay as part of the gradient,
so the optimizer below them gets none.

Nothing here waits for the device: norms and rates stay tensors. With a fused optimizer
below, the gradient scaler's `grad_scale` and `found_inf` stay there too: gradients are
unscaled here, and when they overflowed, the fused kernel skips the step.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from sslengine.distributed.sharding import local


class LayerwiseRates(torch.optim.Optimizer):
    """To stand before an optimizer class in the bases: `class LARS(LayerwiseRates, SGD)`."""

    @abstractmethod
    def _rescale(
        self, params: list[Tensor], grads: list[Tensor], lr: float, weight_decay: float
    ) -> None:
        """grads <- rate * (grads + weight_decay * params), in place.

        Of sharded parameters, `local` gives what can be changed in place, `norms` the
        lengths of the whole.
        """

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            self._rescale_group(group)
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
        """torch wraps the `step` of each class to call step hooks; here they have been called."""
        return partial(step.__wrapped__, self) if getattr(step, "hooked", False) else step

    def _rescale_group(self, group: dict[str, Any]) -> None:
        params = [p for p in group["params"] if p.grad is not None]
        grads = [p.grad for p in params]
        if not params:
            return
        scale = getattr(self, "grad_scale", None)
        if scale is not None:
            torch._foreach_mul_([local(each) for each in grads], scale.reciprocal())
        self._rescale(params, grads, group["lr"], group.get("weight_decay", 0.0))

    def _set_weight_decays(self, values: list[float]) -> None:
        for group, value in zip(self.param_groups, values, strict=True):
            group["weight_decay"] = value
