"""torch's optimizers under VISSL's names, and layer-wise rates: LARS, and LARC with any optimizer.

Layer-wise rates rescale each parameter's gradient before the optimizer uses it. LARS and LARC count
weight decay as part of the gradient, so the base optimizer gets a weight decay of 0. Nothing waits
for the device: norms and rates are tensors. With a fused base optimizer the gradient scaler's
`grad_scale` and `found_inf` stay on the device too: gradients are unscaled here, and the fused
kernel skips the step after an overflow.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from sslengine.distributed.sharding import local, norms
from sslengine.optim.options import LarcOptions
from sslengine.registry import register_optimizer

# Elements that ScaleEach expands at a time: 64 MiB in float32.
CHUNK = 2**24


@register_optimizer("sgd", "sgd_fsdp")
class SGD(torch.optim.SGD):
    """torch's SGD, with initialised momentum in the fused form.

    In the fused form, torch allocates the momentum of all parameters at the first step and leaves
    it uninitialised: if the gradient scaler skips the first step (frequent with fp16), the momentum
    stays uninitialised, and a parameter whose first gradient comes later raises a TypeError.
    Zeros are exact: momentum * 0 + gradient is the value that the first step sets.
    """

    def _init_group(
        self, group: dict[str, Any], params: list[Tensor], grads: list[Tensor],
        momentum_buffer_list: list[Tensor | None],
    ) -> bool:  # fmt: skip
        sparse = super()._init_group(group, params, grads, momentum_buffer_list)  # type: ignore[no-untyped-call]
        for index, momentum in enumerate(momentum_buffer_list):
            if momentum is None and group["fused"]:
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


# ---- multiply each tensor by a number on the device


class ScaleEach:
    """tensors[i] *= factors[i], in place. The object keeps its lists between calls.

    torch's `_foreach_mul_` launches a CUDA kernel for each factor that is a tensor of one element,
    and one for many tensors of equal sizes and strides. So each factor is first expanded to the
    size of its tensor, for all of a chunk by one `cat`.
    """

    def __init__(self) -> None:
        self._layouts: list[object] = []
        # Consecutive tensors: where they are, their factors, these expanded, in one row, as views.
        self._chunks: list[tuple[slice, Tensor, list[Tensor], Tensor, list[Tensor]]] = []

    @torch.no_grad()
    def __call__(self, tensors: list[Tensor], factors: Tensor) -> None:
        """factors: (len(tensors),), on the device of the tensors."""
        if factors.device.type == "cpu":  # no kernel launches to save
            torch._foreach_mul_(tensors, list(factors.unbind()))
        else:
            self.scale_chunks(tensors, factors)

    def scale_chunks(self, tensors: list[Tensor], factors: Tensor) -> None:
        layouts: list[object] = [(each.shape, each.stride()) for each in tensors]
        if layouts != self._layouts:
            self._layouts = layouts
            self._lay_out(tensors, factors)
        for part, own, expanded, row, views in self._chunks:
            own.copy_(factors[part])
            torch.cat(expanded, out=row)
            torch._foreach_mul_(tensors[part], views)

    def _lay_out(self, tensors: list[Tensor], factors: Tensor) -> None:
        sizes = [each.numel() for each in tensors]
        ends = list(_chunk_ends(sizes))
        parts = [*map(slice, [0, *ends[:-1]], ends)]
        buffer = factors.new_empty(max((sum(sizes[part]) for part in parts), default=0))
        self._chunks = []
        for part in parts:
            own, row = factors.new_empty(len(sizes[part])), buffer[: sum(sizes[part])]
            expanded = [*map(Tensor.expand, own.split(1), sizes[part])]
            views = [*map(_view_like, tensors[part], row.split(sizes[part]))]
            self._chunks.append((part, own, expanded, row, views))


def _view_like(tensor: Tensor, numbers: Tensor) -> Tensor:
    """Return a view with the tensor's shape, and with its strides if it has no gaps."""
    reach = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    if tensor.is_contiguous() or reach >= tensor.numel():
        return numbers.view(tensor.shape)
    return numbers.as_strided(tensor.shape, tensor.stride(), numbers.storage_offset())


def _chunk_ends(sizes: Sequence[int]) -> Iterator[int]:
    """Yield the end index of each chunk. A tensor larger than CHUNK is a chunk alone."""
    held = 0
    for number, size in enumerate(sizes):
        if held and held + size > CHUNK:
            yield number
            held = 0
        held += size
    if sizes:
        yield len(sizes)


# ---- layer-wise rates


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
        step: Any = super().step
        # torch wraps `step` in each class to run step hooks, which must run once.
        step = partial(step.__wrapped__, self) if getattr(step, "hooked", False) else step
        try:
            self._set_weight_decays([0.0] * len(weight_decays))
            step()
        finally:
            self._set_weight_decays(weight_decays)
        return loss

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


class LARC(LayerwiseRates):
    """apex's form of layer-wise rates.

        rate = trust_coefficient * |p| / (|g| + weight_decay * |p| + eps)
        rate = min(rate / lr, 1)                      if clip
        g <- rate * (g + weight_decay * p)            where |p| > 0 and |g| > 0

    A parameter whose gradient is all zeros gets no weight decay either, as in apex.
    """

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
        _add_decay(params, grads, weight_decay)
        return grads, rates


@cache
def add_larc(optimizer_class: type[torch.optim.Optimizer]) -> type[LARC]:
    """Return a class that applies LARC before the optimizer; the state dict does not change."""
    return type(f"LARC{optimizer_class.__name__}", (LARC, optimizer_class), {})


@register_optimizer("lars")
class LARS(LayerwiseRates, SGD):
    """LARS as in Barlow Twins: SGD with updates of each layer in proportion to its norm.

        g <- g + weight_decay * p
        g <- g * eta * |p| / |g|        where |p| > 0 and |g| > 0
        m <- momentum * m + g
        p <- p - lr * m

    You, Gitman, Ginsburg: Large batch training of convolutional networks (1708.03888).
    """

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
        _add_decay(params, grads, weight_decay)
        if self.exclude_bias_and_norm:
            grads = [g for p, g in zip(params, grads, strict=True) if p.ndim != 1]
            params = [p for p in params if p.ndim != 1]
        if not params:
            return [], torch.empty(0)
        size, length = norms(params, grads)
        return grads, torch.where((size > 0) & (length > 0), self.eta * size / length, 1.0)


def _add_decay(params: list[Tensor], grads: list[Tensor], weight_decay: float) -> None:
    if weight_decay:
        shares = [local(g) for g in grads], [local(p) for p in params]
        torch._foreach_add_(*shares, alpha=weight_decay)
