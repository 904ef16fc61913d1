"""From the device to the host: one copy for each device, whatever the number of values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

Number = Tensor | float
HOST = torch.device("cpu")  # what is there is read as it is: there is no copy to save


def on_host(cells: Sequence[Number]) -> list[list[float]]:
    """The values of each cell. The host waits for the devices of the tensors among them."""
    kinds: dict[Any, list[Tensor]] = {}
    for cell in cells:
        if isinstance(cell, Tensor) and cell.device != HOST:
            kinds.setdefault((cell.device, cell.dtype), []).append(cell)
    columns = {kind: _column(tensors) for kind, tensors in kinds.items()}
    read: dict[Any, Any] = {}
    for device in {device for device, _ in kinds}:
        own = [kind for kind in kinds if kind[0] == device]
        if len(own) == 1:
            read[own[0]] = iter(columns[own[0]].tolist())
            continue
        flat = iter(torch.cat([columns[kind].double() for kind in own]).tolist())
        for kind in own:
            read[kind] = iter([next(flat) for _ in range(len(columns[kind]))])
    return [_of_cell(cell, read) for cell in cells]


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
    """Single values as one tensor there; the host does not wait for the device."""
    kinds = {(v.device, v.dtype) if isinstance(v, Tensor) else None for v in values}
    if kinds == {None}:
        return torch.tensor(values, dtype=torch.float64).to(device, non_blocking=True)
    if len(kinds) == 1:
        return torch.stack(list(values)).to(device, torch.float64, non_blocking=True)  # type: ignore[arg-type]
    return torch.cat([in_order([each], device) for each in values])
