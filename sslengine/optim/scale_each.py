"""Multiply each tensor of a list by a scalar that is on the device.

torch's `_foreach_mul_` takes a list of numbers from the host, or a tensor for each tensor. With
tensors of one element, CUDA launches a kernel for each; with equal sizes and strides in both lists,
it launches one kernel for many. So each scalar is first expanded to the size of its tensor, for all
tensors of a chunk by one `cat`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

# Elements of a chunk, which limits the memory: 64 MiB in float32.
CHUNK = 2**24


class ScaleEach:
    """tensors[i] *= factors[i], in place. The object keeps its lists between calls."""

    def __init__(self) -> None:
        self._layouts: list[object] = []
        self._chunks: list[_Chunk] = []

    @torch.no_grad()
    def __call__(self, tensors: list[Tensor], factors: Tensor) -> None:
        """factors: (len(tensors),), on the device of the tensors."""
        if factors.device.type == "cpu":  # no kernel launches to save
            torch._foreach_mul_(tensors, list(factors.unbind()))
        else:
            self.by_chunks(tensors, factors)

    def by_chunks(self, tensors: list[Tensor], factors: Tensor) -> None:
        layouts: list[object] = [(each.shape, each.stride()) for each in tensors]
        if layouts != self._layouts:
            self._layouts, self._chunks = layouts, list(_chunks(tensors, factors))
        for chunk in self._chunks:
            torch._foreach_mul_(tensors[chunk.indices], chunk.expand(factors))


class _Chunk:
    """Consecutive tensors of the list."""

    def __init__(self, indices: slice, tensors: Sequence[Tensor], factors: Tensor, buffer: Tensor):
        self.indices = indices
        sizes = [each.numel() for each in tensors]
        self._factors = factors.new_empty(len(tensors))
        self._expanded = [
            factor.expand(size) for factor, size in zip(self._factors.split(1), sizes, strict=True)
        ]
        self._buffer = buffer[: sum(sizes)]
        self._views = [
            _view_like(each, part)
            for each, part in zip(tensors, self._buffer.split(sizes), strict=True)
        ]

    def expand(self, factors: Tensor) -> list[Tensor]:
        self._factors.copy_(factors[self.indices])
        torch.cat(self._expanded, out=self._buffer)
        return self._views


def _view_like(tensor: Tensor, numbers: Tensor) -> Tensor:
    """Return a view with the tensor's shape, and with its strides if it has no gaps."""
    reach = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    if tensor.is_contiguous() or reach >= tensor.numel():
        return numbers.view(tensor.shape)
    return numbers.as_strided(tensor.shape, tensor.stride(), numbers.storage_offset())


def _chunks(tensors: list[Tensor], factors: Tensor) -> Iterator[_Chunk]:
    sizes = [each.numel() for each in tensors]
    ends = list(_chunk_ends(sizes))
    starts = [0, *ends[:-1]]
    parts = [slice(start, end) for start, end in zip(starts, ends, strict=True)]
    buffer = factors.new_empty(max((sum(sizes[part]) for part in parts), default=0))
    for part in parts:
        yield _Chunk(part, tensors[part], factors, buffer)


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
