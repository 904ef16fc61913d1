"""A memory bank: one row for each training sample, with its latest embedding.

Every rank has all rows, or they are sharded over ranks: then each rank writes to its rows, and
`fetch` gets the rows of others. As in torch, the first ceil(rows / ranks) rows belong to rank 0,
and so on. A sharded memory is a DTensor, so that checkpoints store it sharded and another number
of ranks can resume from it.
"""

from __future__ import annotations

import logging
import math

import torch
from torch import Tensor
from torch.nn import functional as F

from sslengine.distributed.collectives import exchange, exchange_counts
from sslengine.distributed.process_group import backend_device
from sslengine.distributed.ranks import rank, world_size
from sslengine.distributed.sharding import is_sharded, local, make_dtensor, mesh_of

log = logging.getLogger("sslengine")

# Rows that are drawn at a time, so that making the memory needs little more than its size.
DRAWN_AT_ONCE = 2**16
# With several ranks and `sharded: auto`, a larger memory is sharded. In bytes: 2.1 million rows of
# 128 numbers.
WHOLE_BELOW = 2**30


def is_shared(sharded: bool | str, rows: int, *shape: int) -> bool:
    """Is a memory of so many rows sharded?"""
    if sharded != "auto":
        return bool(sharded)
    size = 4 * rows * math.prod(shape)
    if world_size() == 1 or size <= WHOLE_BELOW:
        return False
    log.info(
        "memory_params.sharded is auto: %d rows take %.1f GB; each of %d ranks keeps its share.",
        rows, size / 1e9, world_size(),
    )  # fmt: skip
    return True


def random_rows(num_rows: int, dim: int, unit_length: bool, shared: bool = False) -> Tensor:
    """The initial memory: uniform numbers. The length of a row is 1, exactly or on average.

    Sharded or not, the numbers are the same: each rank draws all rows and keeps its own.
    """
    mine = own_rows(num_rows) if shared else slice(0, num_rows)
    own = torch.empty(mine.stop - mine.start, dim)
    for first in range(0, num_rows, DRAWN_AT_ONCE):
        rows = _drawn(min(DRAWN_AT_ONCE, num_rows - first), dim, unit_length)
        start, stop = max(first, mine.start), min(first + len(rows), mine.stop)
        if start < stop:
            own[start - mine.start : stop - mine.start] = rows[start - first : stop - first]
    return share_out(own, num_rows) if shared else own


def _drawn(num_rows: int, dim: int, unit_length: bool) -> Tensor:
    rows = (torch.rand(num_rows, dim) * 2 - 1) * (3 / dim) ** 0.5
    return F.normalize(rows, dim=1) if unit_length else rows


def zero_rows(num_rows: int, *shape: int, shared: bool = False) -> Tensor:
    """An empty memory."""
    if not shared:
        return torch.zeros(num_rows, *shape)
    mine = own_rows(num_rows)
    return share_out(torch.zeros(mine.stop - mine.start, *shape), num_rows)


@torch.no_grad()
def overwrite(memory: Tensor, rows: Tensor, values: Tensor, counted: Tensor) -> None:
    """memory[rows[i]] = values[i] wherever counted[i]; of several values for a row the last counts.

    rows (R,), values (R, ...), counted (R,) of bool, the same on all ranks. Where counted is false,
    the row may be any valid index. The result is deterministic on any device.
    """
    here, places, is_here = locate(memory, rows)
    _write(here, places, values, counted & is_here)


@torch.no_grad()
def move_towards(
    memory: Tensor, rows: Tensor, values: Tensor, counted: Tensor, momentum: float
) -> None:
    """The same with m * old + (1 - m) * new, scaled to unit length, in place of the new value."""
    here, places, is_here = locate(memory, rows)
    if len(here):
        moved = here[places] * momentum + values * (1.0 - momentum)
        _write(here, places, F.normalize(moved, dim=1), counted & is_here)


def _write(memory: Tensor, rows: Tensor, values: Tensor, counted: Tensor) -> None:
    if not len(memory):
        return
    last = _last_writer(rows, counted)
    # Entries that do not count write the final value of their row.
    found = (last >= 0).view(-1, *[1] * (values.ndim - 1))
    memory.index_copy_(0, rows, torch.where(found, values[last], memory[rows]))


def _last_writer(rows: Tensor, counted: Tensor) -> Tensor:
    """Return for each entry of rows (R,) the last one that counts with the same row; -1: none.

    By sorting (row, index), which needs neither R x R memory, where R is the global batch size, nor
    a host synchronisation.
    """
    step = len(rows) + 1
    places = torch.arange(1, step, device=rows.device)
    ordered = (rows * step + torch.where(counted, places, 0)).sort().values
    end = torch.searchsorted(ordered, rows * step + len(rows), right=True)
    return ordered[end - 1] % step - 1


# ---- rows that ranks share


def rows_of_a_rank(count: int) -> int:
    """Return how many of `count` rows a rank has; the last ranks may have fewer."""
    return -(-count // world_size())


def own_rows(count: int) -> slice:
    """Return which of `count` rows this rank has."""
    first = min(count, rank() * rows_of_a_rank(count))
    return slice(first, min(count, first + rows_of_a_rank(count)))


def share_out(own: Tensor, count: int) -> Tensor:
    """Make the sharded tensor of `count` rows; `own` are this rank's. With one process: `own`."""
    if world_size() == 1:
        return own
    shape = torch.Size((count, *own.shape[1:]))
    stride = torch.empty(shape, device="meta").stride()
    return make_dtensor(own, shape, stride, mesh_of(backend_device()))


@torch.no_grad()
def fetch(tensor: Tensor, rows: Tensor) -> Tensor:
    """Return tensor[rows], without gradient; each rank may choose other rows (...).

    If the tensor is sharded: collective, with two host synchronisations, for the number of
    different rows and for the numbers of rows that other ranks request. A row is sent once to
    each rank that requests it.
    """
    if not is_sharded(tensor):
        return tensor[rows]
    mine, block = local(tensor), rows_of_a_rank(len(tensor))
    wanted, places = rows.unique(return_inverse=True)  # sorted, so also by owner
    owners = wanted // block
    # Not bincount: on a GPU it synchronises to find the maximum.
    leaving = wanted.new_zeros(world_size()).index_add_(0, owners, torch.ones_like(owners))
    counts = exchange_counts(leaving)
    asked = exchange(wanted, counts)
    found = exchange(mine[asked - rank() * block], counts.back())
    return found[places]


def locate(tensor: Tensor, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return this rank's part of `tensor`, the indices of `rows` in it, and whether it has them.

    A row of another rank gets some valid index.
    """
    here = local(tensor)
    if not is_sharded(tensor):
        return here, rows, torch.ones_like(rows, dtype=torch.bool)
    places = rows - own_rows(len(tensor)).start
    is_here = (places >= 0) & (places < len(here))
    return here, torch.where(is_here, places, 0), is_here
