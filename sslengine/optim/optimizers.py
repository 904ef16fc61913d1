"""torch's optimizers under VISSL's names."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sslengine.registry import register_optimizer


@register_optimizer("sgd", "sgd_fsdp")
class SGD(torch.optim.SGD):
    """torch's, whose momentum also starts well in the fused form.

    Fused, torch reserves the momentum of all parameters at the first step and leaves it
    uninitialised: a first step that the gradient scaler skips (fp16, very often) keeps
    garbage, and a parameter whose first gradient comes later ends in a TypeError. Zeros
    instead are exact: momentum * 0 + gradient is what the first step sets.
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
    """torch's."""


@register_optimizer("adamw", "adamw_mt")
class AdamW(torch.optim.AdamW):
    """torch's; always the multi-tensor form where it is faster, which VISSL calls adamw_mt."""


@register_optimizer("rmsprop")
class RMSprop(torch.optim.RMSprop):
    """torch's."""
