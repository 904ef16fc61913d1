"""Single numbers from torch's global stream, as torchvision's transforms draw them.

torchvision makes a tensor for each, which takes as long as to draw it. Here one tensor is drawn
into again and again. Each function says what it stands for.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import torch


class _Cells(threading.local):
    """What is drawn into; each thread has its own, for torch draws without Python's lock."""

    def __init__(self) -> None:
        real = torch.empty(1, dtype=torch.float32, device="cpu")
        whole = torch.empty(1, dtype=torch.int64, device="cpu")
        self.draw_real, self.draw_whole = real.uniform_, whole.random_
        # By way of numpy it takes a fifth of the time.
        self.real: Callable[[], float] = real.numpy().item
        self.whole: Callable[[], int] = whole.numpy().item


_cells = _Cells()


def chance() -> float:
    """torch.rand(1).item()"""
    _cells.draw_real()
    return _cells.real()


def as_compared(p: float) -> float:
    """What `torch.rand(1) < p` compares with: p as a float32."""
    return float(np.float32(p))


def uniform(low: float, high: float) -> float:
    """torch.empty(1).uniform_(low, high).item()"""
    _cells.draw_real(low, high)
    return _cells.real()


def exp_of_uniform(low: float, high: float) -> float:
    """torch.empty(1).uniform_(low, high).exp().item()"""
    _cells.draw_real(low, high).exp_()
    return _cells.real()


def below(end: int) -> int:
    """torch.randint(0, end, (1,)).item()"""
    _cells.draw_whole(0, end)
    return _cells.whole()
