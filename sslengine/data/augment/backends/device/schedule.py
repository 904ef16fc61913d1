"""Which kernel runs on which views of a batch, and when.

Views of one batch have unlike operations in unlike orders. Each view's own order holds;
otherwise those with the same operation next go together.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sslengine.data.augment.backends.device.program import KERNELS, Program

# A kind is a code, and on top so many times the number that the operation sorts views by.
KINDS = len(KERNELS) + 1
TABLES = {
    code: table for code, each in enumerate(KERNELS, 1) if (table := each.table()) is not None
}


class Launch(NamedTuple):
    """A kernel on the views `which[first:last]` of a schedule."""

    kind: int
    first: int
    last: int


class Schedule(NamedTuple):
    launches: list[Launch]
    which: Tensor  # int64: numbers of views, launch after launch
    parameters: Tensor  # float32, for each of `which`
    tables: dict[int, Tensor]  # what kernels look up, by the operation's code

    def pinned(self) -> Schedule:
        """In memory that a GPU copies from while the host continues."""
        tables = {code: table.pin_memory() for code, table in self.tables.items()}
        return Schedule(
            self.launches, self.which.pin_memory(), self.parameters.pin_memory(), tables
        )


def schedule(program: Program) -> Schedule:
    groups = list(_groups(program))
    ends = np.cumsum([0, *(len(views) for _, views, _ in groups)]).tolist()
    launches = [
        Launch(kind, first, last) for (kind, _, _), first, last in zip(groups, ends, ends[1:])
    ]
    which = np.concatenate([np.empty(0, np.int64), *(views for _, views, _ in groups)])
    parameters = np.concatenate([np.empty(0, np.float32), *(given for _, _, given in groups)])
    return Schedule(launches, torch.from_numpy(which), torch.from_numpy(parameters), TABLES)


Group = tuple[int, NDArray[np.int64], NDArray[np.float32]]


def _groups(program: Program) -> Iterator[Group]:
    """Kind, views and parameters, one group after another until nothing is left to do."""
    kinds, parameters = _kinds(program)
    views = np.arange(len(kinds))
    ends = np.zeros((len(kinds), 1), kinds.dtype)
    kinds = np.concatenate([kinds, ends], axis=1)
    done = np.zeros(len(kinds), np.int64)
    pending = np.bincount(kinds.ravel(), minlength=1)
    pending[0] = 0
    while pending.any():
        following = kinds[views, done]
        ready = np.bincount(following, minlength=len(pending))
        # The kind of which the least has to wait for another turn. 0 is none.
        kind = int(np.argmax(ready[1:] / np.maximum(pending[1:], 1))) + 1
        chosen = np.flatnonzero(following == kind)
        yield kind, chosen, parameters[chosen, done[chosen]]
        done[chosen] += 1
        pending[kind] -= len(chosen)


def _kinds(program: Program) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """And the parameters as kernels take them."""
    codes, parameters = program.codes, program.parameters.copy()
    kinds = codes.astype(np.int64)
    for code in np.unique(codes[codes > 0]):
        chosen = codes == code
        number, parameters[chosen] = KERNELS[code - 1].sorted_out(parameters[chosen])
        kinds[chosen] += KINDS * number
    return kinds, parameters
