"""torch's optimizers under VISSL's names."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sslengine.registry import register_optimizer


@register_optimizer("sgd", "sgd_fsdp")
class SGD(torch.optim.SGD):
    """torch's SGD, with initialised momentum in the fused form.

    In the fused form, torch allocates the momentum of all parameters at the first step and leaves
    it uninitialised: if the gradient scaler skips the first step (frequent with fp16), the momentum
    stays uninitialised, and a parameter whose first gradient comes later raises a TypeError.
    Zeros are exact: momentum * 0 + gradient is the value that the first step sets.
    """

    def _init_group(
        self,
        group: dict[str, Any],
        params: list[Tensor],
        grads: list[Tensor],
        momentum_buffer_list: list[Tensor | None],
    ) -> bool:
        sparse = super()._init_group(group, params, grads, momentum_buffer_list)  # type: ignore[no-untyped-call]
        if group["fused"]:
            for index, momentum in enumerate(momentum_buffer_list):
                if momentum is None:
                    momentum_buffer_list[index] = torch.zeros_like(params[index])
        return bool(sparse)


@register_optimizer("adam")
class Adam(torch.optim.Adam):
    """torch's Adam."""


@register_optimizer("adamw", "adamw_mt")
class AdamW(torch.optim.AdamW):
    """torch's AdamW, in the multi-tensor form (VISSL's adamw_mt) where that is faster."""


@register_optimizer("rmsprop")
class RMSprop(torch.optim.RMSprop):
    """torch's RMSprop."""
