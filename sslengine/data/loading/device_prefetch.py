"""Batches on the device.

With a GPU, and if ENABLE_ASYNC_GPU_COPY is set, the next batch is copied on a separate stream
while the current step computes. The host waits for neither.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from sslengine.data.augment.finish import FinishOn
from sslengine.data.batch.collators import Batch

S = TypeVar("S")
T = TypeVar("T")
U = TypeVar("U")

# For messages and book-keeping: read on the host, without waiting for the device.
HOST_KEYS = ("data_idx",)


def on_device(
    batches: Iterable[Batch], device: torch.device, overlap: bool, finish: FinishOn | None = None
) -> Iterator[Batch]:
    """The batches, with every tensor but those of HOST_KEYS on the device; images are finished
    there."""
    if finish is None and device.type == "cpu":
        return iter(batches)

    def arrive(batch: Batch) -> Batch:
        if finish is None or not isinstance(batch, dict):
            return _move(batch, device)
        return finish.finish_batch(_move(batch, device))

    if device.type == "cuda" and overlap:
        copier = _SideStream(device, arrive)
        return one_ahead(batches, copier.start, copier.finish)
    return map(arrive, batches)


def one_ahead(items: Iterable[S], start: Callable[[S], T], finish: Callable[[T], U]) -> Iterator[U]:
    """Start each item before the one that precedes it is given out."""
    waiting: list[T] = []
    for item in items:
        waiting.append(start(item))
        if len(waiting) == 2:
            yield finish(waiting.pop(0))
    yield from map(finish, waiting)


class _Copy(NamedTuple):
    batch: Batch
    done: torch.cuda.Event


class _SideStream:
    def __init__(self, device: torch.device, arrive: Callable[[Batch], Batch]) -> None:
        self._device, self._arrive = device, arrive
        self._stream = torch.cuda.Stream(device)

    def start(self, batch: Batch) -> _Copy:
        with torch.cuda.stream(self._stream):
            return _Copy(self._arrive(batch), self._stream.record_event())

    def finish(self, copy: _Copy) -> Batch:
        compute = torch.cuda.current_stream(self._device)
        compute.wait_event(copy.done)
        # Else its memory could go to the next copy while the step still reads it.
        _each(copy.batch, lambda tensor: _used_by(compute, tensor))
        return copy.batch


def _used_by(stream: torch.cuda.Stream, tensor: Tensor) -> None:
    if tensor.is_cuda:
        tensor.record_stream(stream)


def _move(batch: Batch, device: torch.device) -> Batch:
    # From pinned memory this returns at once; from other memory the host waits.
    def move(tensor: Tensor) -> Tensor:
        return tensor.to(device, non_blocking=True)

    if not isinstance(batch, dict):  # a custom collator may make anything
        return _each(batch, move)  # type: ignore[no-any-return]
    return {
        key: values if key in HOST_KEYS else _each(values, move) for key, values in batch.items()
    }


def _each(value: Any, function: Callable[[Tensor], Any]) -> Any:
    """`function` of every tensor in nested lists, tuples and dictionaries; keeps other values."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, dict):
        return {key: _each(item, function) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        items = [_each(item, function) for item in value]
        # A named tuple takes its items one by one.
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value
