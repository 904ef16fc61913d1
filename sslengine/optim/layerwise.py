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
from sslengine.optim.scale_each import ScaleEach


class LayerwiseRates(torch.optim.Optimizer):
    """To stand before an optimizer class in the bases: `class LARS(LayerwiseRates, SGD)`."""

    def __init__(self, *args: Any, **arguments: Any) -> None:
        super().__init__(*args, **arguments)
        self._scale_each = ScaleEach()

    @abstractmethod
    def _rates(
        self, params: list[Tensor], grads: list[Tensor], lr: float, weight_decay: float
    ) -> tuple[list[Tensor], Tensor]:
        """grads <- grads + weight_decay * params, in place; those to rescale, and a rate for each.

        Of sharded parameters, `local` gives what can be changed in place, `norms` the
        lengths of the whole.
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
        """torch wraps the `step` of each class to call step hooks; here they have been called."""
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
