"""From the device to the host: one copy for each device, for any number of values."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from sslengine.precision import widest

Number = Tensor | float
HOST = torch.device("cpu")  # its tensors are read without a copy


class HostCopy:
    """A copy of cells to the host. From a CUDA device it runs while the host continues."""

    def __init__(self, cells: Sequence[Number]) -> None:
        self._cells = cells
        kinds: dict[Any, list[Tensor]] = {}
        for cell in cells:
            if isinstance(cell, Tensor) and cell.device != HOST:
                kinds.setdefault((cell.device, cell.dtype), []).append(cell)
        self._copies: list[tuple[Tensor, list[tuple[Any, int]]]] = []
        self._events: list[Any] = []
        for device in {device for device, _ in kinds}:
            columns = {kind: _column(each) for kind, each in kinds.items() if kind[0] == device}
            self._start(device, columns)

    def _start(self, device: torch.device, columns: dict[Any, Tensor]) -> None:
        """Into pinned memory, if the device is a CUDA device: torch allocates it."""
        on_cuda = device.type == "cuda"
        for some in _copied_together(columns, device):
            parts = list(some.values())
            row = parts[0] if len(parts) == 1 else torch.cat([each.double() for each in parts])
            lengths = [(kind, len(each)) for kind, each in some.items()]
            self._copies.append((row.to("cpu", non_blocking=on_cuda), lengths))
        if on_cuda:
            self._events.append(torch.cuda.current_stream(device).record_event())

    @property
    def from_device(self) -> bool:
        """Does a copy run while the host continues?"""
        return bool(self._events)

    def is_complete(self) -> bool:
        return all(event.query() for event in self._events)

    def values(self) -> list[list[float]]:
        """Of each cell."""
        for event in self._events:
            event.synchronize()
        read: dict[Any, Any] = {}
        for copy, lengths in self._copies:
            row = iter(copy.tolist())
            for kind, length in lengths:
                read[kind] = iter(list(islice(row, length)))
        return [_of_cell(cell, read) for cell in self._cells]


def _copied_together(columns: dict[Any, Tensor], device: torch.device) -> list[dict[Any, Tensor]]:
    """Several types in one row are float64, which holds the values of all."""
    if widest(device) == torch.float64:
        return [columns]
    return [{kind: column} for kind, column in columns.items()]


def on_host(cells: Sequence[Number]) -> list[list[float]]:
    """The values of each cell. The host waits for the devices of the tensors among them."""
    return HostCopy(cells).values()


def _column(tensors: Sequence[Tensor]) -> Tensor:
    if all(each.ndim == 0 for each in tensors):  # most are: twice as fast
        return torch.stack(list(tensors))
    return torch.cat([each.reshape(-1) for each in tensors])


def _of_cell(cell: Number, read: Any) -> list[float]:
    if not isinstance(cell, Tensor):
        return [cell]
    if cell.device == HOST:
        return [float(cell.item())] if cell.ndim == 0 else cell.double().reshape(-1).tolist()  # type: ignore[no-any-return]
    column = read[cell.device, cell.dtype]
    return [float(next(column)) for _ in range(cell.numel() if cell.ndim else 1)]


def in_order(values: Sequence[Number], device: torch.device) -> Tensor:
    """All numbers of the values in one row there; the host does not wait for the device."""
    kinds = {(v.device, v.dtype) if isinstance(v, Tensor) else None for v in values}
    if kinds == {None}:
        return torch.tensor(values, dtype=torch.float64).to(device, non_blocking=True)
    if len(kinds) == 1:
        return _column(values).to(device, torch.float64, non_blocking=True)  # type: ignore[arg-type]
    return torch.cat([in_order([each], device) for each in values])
