"""A tensor whose rows are shared out among ranks, which ask each other for them.

Cut as torch cuts shards: the first ceil(rows / ranks) belong to rank 0, and so on. To the
outside it is one tensor of all ranks (a DTensor), so that checkpoints hold it sharded and
another number of ranks can resume from it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sslengine.distributed.collectives import exchange, exchange_counts
from sslengine.distributed.process_group import backend_device
from sslengine.distributed.ranks import rank, world_size
from sslengine.distributed.sharding import is_sharded, local, mesh_of, on_mesh


def rows_of_a_rank(count: int) -> int:
    """Of so many rows; the last ranks may have fewer."""
    return -(-count // world_size())


def own_rows(count: int) -> slice:
    """This rank's, of so many."""
    first = min(count, rank() * rows_of_a_rank(count))
    return slice(first, min(count, first + rows_of_a_rank(count)))


def shared_out(own: Tensor, count: int) -> Tensor:
    """The tensor of `count` rows of which each rank gives its own. One process has all of them."""
    if world_size() == 1:
        return own
    shape = torch.Size((count, *own.shape[1:]))
    stride = torch.empty(shape, device="meta").stride()
    return on_mesh(own, shape, stride, mesh_of(backend_device()))


@torch.no_grad()
def fetch(tensor: Tensor, rows: Tensor) -> Tensor:
    """tensor[rows], for rows (...) of this rank's choice, without gradient.

    Shared out it is collective, and the host waits twice: to learn how many different rows are
    wanted, and how many other ranks want. A row travels once to each rank that asks for it,
    however often.
    """
    if not is_sharded(tensor):
        return tensor[rows]
    mine, block = local(tensor), rows_of_a_rank(len(tensor))
    wanted, places = rows.unique(return_inverse=True)  # ordered: by their owners, too
    owners = wanted // block
    # Not bincount: on a GPU that waits to see the largest number.
    leaving = wanted.new_zeros(world_size()).index_add_(0, owners, torch.ones_like(owners))
    counts = exchange_counts(leaving)
    asked = exchange(wanted, counts)
    found = exchange(mine[asked - rank() * block], counts.back())
    return found[places]


def within(tensor: Tensor, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What is here of `tensor`, the places of `rows` in it, and whether they are in it at all.

    A row that is elsewhere gets some place of those that are here.
    """
    here = local(tensor)
    if not is_sharded(tensor):
        return here, rows, torch.ones_like(rows, dtype=torch.bool)
    places = rows - own_rows(len(tensor)).start
    is_here = (places >= 0) & (places < len(here))
    return here, torch.where(is_here, places, 0), is_here
