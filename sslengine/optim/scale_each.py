"""Multiply each tensor of a list by a number of its own that is on the device.

torch's `_foreach_mul_` takes a list of numbers from the host, or one tensor for each tensor; if
those are single numbers, CUDA launches a kernel for each. It is one launch for many where both
lists have the same sizes and strides. So here each number is first spread over as many places as
its tensor has, for all tensors of a chunk by one `cat`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

# Numbers that are spread at once, which bounds the memory: 64 MiB in float32.
CHUNK = 2**24


class ScaleEach:
    """tensors[i] *= factors[i], in place. Kept from call to call: the lists are built once."""

    def __init__(self) -> None:
        self._layouts: list[object] = []
        self._chunks: list[_Chunk] = []

    @torch.no_grad()
    def __call__(self, tensors: list[Tensor], factors: Tensor) -> None:
        """factors: (len(tensors),), on the device of the tensors."""
        if factors.device.type == "cpu":  # no launches to save, and half the memory to pass through
            torch._foreach_mul_(tensors, list(factors.unbind()))
        else:
            self.by_chunks(tensors, factors)

    def by_chunks(self, tensors: list[Tensor], factors: Tensor) -> None:
        layouts: list[object] = [(each.shape, each.stride()) for each in tensors]
        if layouts != self._layouts:
            self._layouts, self._chunks = layouts, list(_chunks(tensors, factors))
        for chunk in self._chunks:
            torch._foreach_mul_(tensors[chunk.which], chunk.spread(factors))


class _Chunk:
    """Some neighbours of the list."""

    def __init__(self, which: slice, tensors: Sequence[Tensor], factors: Tensor, room: Tensor):
        self.which = which
        sizes = [each.numel() for each in tensors]
        self._factors = factors.new_empty(len(tensors))
        self._expanded = [
            factor.expand(size) for factor, size in zip(self._factors.split(1), sizes, strict=True)
        ]
        self._room = room[: sum(sizes)]
        self._spread = [
            _laid_out_like(each, part)
            for each, part in zip(tensors, self._room.split(sizes), strict=True)
        ]

    def spread(self, factors: Tensor) -> list[Tensor]:
        self._factors.copy_(factors[self.which])
        torch.cat(self._expanded, out=self._room)
        return self._spread


def _laid_out_like(tensor: Tensor, numbers: Tensor) -> Tensor:
    """A view of equally many numbers, which are all the same; with gaps it cannot be one."""
    reach = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    if tensor.is_contiguous() or reach >= tensor.numel():
        return numbers.view(tensor.shape)
    return numbers.as_strided(tensor.shape, tensor.stride(), numbers.storage_offset())


def _chunks(tensors: list[Tensor], factors: Tensor) -> Iterator[_Chunk]:
    sizes = [each.numel() for each in tensors]
    ends = list(_cut(sizes))
    starts = [0, *ends[:-1]]
    parts = [slice(start, end) for start, end in zip(starts, ends, strict=True)]
    room = factors.new_empty(max((sum(sizes[part]) for part in parts), default=0))
    for part in parts:
        yield _Chunk(part, tensors[part], factors, room)


def _cut(sizes: Sequence[int]) -> Iterator[int]:
    """Where chunks end. A tensor larger than a chunk is one by itself."""
    held = 0
    for number, size in enumerate(sizes):
        if held and held + size > CHUNK:
            yield number
            held = 0
        held += size
    if sizes:
        yield len(sizes)
