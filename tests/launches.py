"""Operations that a GPU would launch, counted on any device; foreach ones by torch's own rules.

A `_foreach_` operation is one launch for many tensors only if they are alike in ways that torch
checks (ATen/native/ForeachUtils.h); otherwise CUDA runs it tensor by tensor, without a word.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

# Only the metadata of a tensor changes, or nothing is computed.
_FREE = ("empty", "empty_like", "empty_strided", "new_empty", "lift_fresh", "detach", "alias",
         "_reshape_alias", "expand", "unbind", "split", "split_with_sizes", "chunk", "set_")  # fmt: skip


class Launches(TorchDispatchMode):
    """Within it: `counts` by name, and in `slow` why a foreach operation goes tensor by tensor."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts: Counter[str] = Counter()
        self.slow: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        name = func.overloadpacket.__name__
        why = why_slow(func, args)
        if why:
            self.slow.append(f"{func}: {why}")
        if name not in _FREE and not func.is_view:
            self.counts[name] += len(args[0]) if why else 1
        return func(*args, **(kwargs or {}))

    @property
    def total(self) -> int:
        return sum(self.counts.values())


def why_slow(func: Any, args: Sequence[Any]) -> str:
    """Why CUDA would run this operation tensor by tensor; "" if it would not."""
    name = func.overloadpacket.__name__
    if not name.startswith("_foreach_"):
        return ""
    lists = [each for each in args if isinstance(each, (list, tuple)) and _of_tensors(each)]
    copies = name.startswith("_foreach_copy")
    first = lists[0][0]
    for each in lists:
        dtype = each[0].dtype if copies else first.dtype
        for tensor in each:
            if tensor.dtype != dtype:
                return f"{tensor.dtype} beside {dtype}"
            if tensor.device != first.device:
                return f"{tensor.device} beside {first.device}"
            if not _dense(tensor):
                return f"strides {tensor.stride()} of {tuple(tensor.shape)} are not dense"
    for other in lists[1:]:
        for one, two in zip(lists[0], other, strict=True):
            if _layout(one) != _layout(two):
                return f"{_layout(one)} beside {_layout(two)}"
    for number in args[1:]:
        on_device = isinstance(number, Tensor) and number.device == first.device
        if on_device and number.dtype != first.dtype:
            return f"a number of {number.dtype} for {first.dtype}"
        if isinstance(number, float) and not first.dtype.is_floating_point and not copies:
            return f"a float for {first.dtype}"
    return ""


def _of_tensors(values: Sequence[Any]) -> bool:
    return bool(values) and all(isinstance(each, Tensor) for each in values)


def _layout(tensor: Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Where there is one place along a dimension, its stride does not matter."""
    strides = zip(tensor.shape, tensor.stride(), strict=True)
    return tuple(tensor.shape), tuple(0 if size == 1 else step for size, step in strides)


def _dense(tensor: Tensor) -> bool:
    """Does it fill its memory, each place once?"""
    expected = 1
    for step, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if step != expected:
                return not tensor.numel()
            expected *= size
    return True
