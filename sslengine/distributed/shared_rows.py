"""Share the rows of a tensor over ranks, and exchange rows between them.

As in torch, the first ceil(rows / ranks) rows belong to rank 0, and so on. The tensor is a
DTensor, so that checkpoints store it sharded and another number of ranks can resume from it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sslengine.distributed.collectives import exchange, exchange_counts
from sslengine.distributed.process_group import backend_device
from sslengine.distributed.ranks import rank, world_size
from sslengine.distributed.sharding import is_sharded, local, make_dtensor, mesh_of


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
