"""From the device to the host: one copy for each device, whatever the number of values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

Number = Tensor | float


def on_host(cells: Sequence[Number]) -> list[list[float]]:
    """The values of each cell. The host waits for the devices of the tensors among them."""
    kinds: dict[Any, list[Tensor]] = {}
    for cell in cells:
        if isinstance(cell, Tensor):
            kinds.setdefault((cell.device, cell.dtype), []).append(cell.reshape(-1))
    of_device: dict[torch.device, list[Tensor]] = {}
    for (device, _), parts in kinds.items():
        of_device.setdefault(device, []).append(torch.cat(parts).double())
    read: dict[Any, Any] = {}
    for device, columns in of_device.items():
        flat = iter((columns[0] if len(columns) == 1 else torch.cat(columns)).tolist())
        own = (kind for kind in kinds if kind[0] == device)
        for kind, column in zip(own, columns, strict=True):
            read[kind] = iter([next(flat) for _ in range(len(column))])
    return [
        [next(read[cell.device, cell.dtype]) for _ in range(cell.numel())]
        if isinstance(cell, Tensor)
        else [cell]
        for cell in cells
    ]


def in_order(values: Sequence[Number], device: torch.device) -> Tensor:
    """Single values as one tensor there; the host does not wait for the device."""
    kinds = {(v.device, v.dtype) if isinstance(v, Tensor) else None for v in values}
    if kinds == {None}:
        return torch.tensor(values, dtype=torch.float64).to(device, non_blocking=True)
    if len(kinds) == 1:
        return torch.stack(list(values)).to(device, torch.float64, non_blocking=True)  # type: ignore[arg-type]
    return torch.cat([in_order([each], device) for each in values])
