"""Single numbers from torch's global stream, as torchvision's transforms draw them.

torchvision makes a tensor for each, which takes as long as to draw it. Here one tensor is drawn
into again and again. Each docstring has the call that the function replaces.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

T = TypeVar("T")
Cell = tuple[Callable[..., Tensor], Callable[[], T]]


class _Cells(threading.local):
    """What is drawn into; each thread has its own, for torch draws without Python's lock."""

    def __init__(self) -> None:
        with torch.inference_mode(False):  # made within it, they could be used nowhere else
            reals = [torch.empty(count, dtype=torch.float32, device="cpu") for count in range(5)]
            whole = torch.empty(1, dtype=torch.int64, device="cpu")
        # How they are drawn into and read; numpy reads in a fifth of the time that torch takes.
        self.real: Cell[float] = reals[1].uniform_, reals[1].numpy().item
        self.reals: list[Cell[list[float]]] = [(r.uniform_, r.numpy().tolist) for r in reals]
        self.whole: Cell[int] = whole.random_, whole.numpy().item


_cells = _Cells()


def round_p(p: float) -> float:
    """Return what `torch.rand(1) < p` compares with: p as a float32."""
    return float(np.float32(p))


def uniform(low: float = 0.0, high: float = 1.0) -> float:
    """torch.empty(1).uniform_(low, high).item(); by default torch.rand(1).item()"""
    draw, read = _cells.real
    draw(low, high)
    return read()


def uniforms(ranges: Iterable[tuple[float, float, int]]) -> list[float]:
    """Draw from each range (low, high, count), up to 4 times, what `uniform` gives one by one."""
    drawn: list[float] = []
    for low, high, count in ranges:
        draw, read = _cells.reals[count]
        draw(low, high)
        drawn += read()
    return drawn


def exp_of_uniform(low: float, high: float) -> float:
    """torch.empty(1).uniform_(low, high).exp().item()"""
    draw, read = _cells.real
    draw(low, high).exp_()
    return read()


def below(end: int) -> int:
    """torch.randint(0, end, (1,)).item()"""
    draw, read = _cells.whole
    draw(0, end)
    return read()
