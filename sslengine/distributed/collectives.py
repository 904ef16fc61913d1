"""Collective operations. With one process each returns its input.

Gradients: the engine's loss is the mean of the ranks' losses, and DDP averages gradients
over ranks. So the gradient of a value that several ranks used is the SUM of their gradients,
without a factor of the world size.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from sslengine.distributed.process_group import Group, backend_device
from sslengine.distributed.ranks import initialized, rank, world_size

Thing = TypeVar("Thing")


class Gathered(NamedTuple):
    """The rows of all ranks in rank order, and the index of this rank's first row."""

    rows: Tensor
    start: int


def gather(tensor: Tensor) -> Gathered:
    """Gather the rows of all ranks, with gradient.

    In training all ranks must have the same number of rows, which costs one collective.
    Without gradient (evaluation, where numbers differ) the sizes are exchanged first: one
    more collective and a host synchronisation.
    """
    if world_size() == 1:
        return Gathered(tensor, 0)
    if torch.is_grad_enabled():
        rows = cast(Tensor, _Gather.apply(tensor))  # type: ignore[no-untyped-call]
        return Gathered(rows, rank() * tensor.shape[0])
    return _gather_uneven(tensor)


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return gather_equal(tensor)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        own = grad.new_empty(grad.shape[0] // world_size(), *grad.shape[1:])
        _reduce_scatter_rows(own, grad.contiguous())
        return own


# torch 2.14 renamed these functions; the old names cause a warning.
_all_gather_rows = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter_rows = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def gather_equal(tensor: Tensor) -> Tensor:
    """Gather the rows of all ranks, which have equally many, without gradient."""
    rows = tensor.new_empty((world_size() * tensor.shape[0], *tensor.shape[1:]))
    _all_gather_rows(rows, tensor.contiguous())
    return rows


def _gather_uneven(tensor: Tensor) -> Gathered:
    sizes = gather_equal(torch.tensor([tensor.shape[0]], device=tensor.device)).tolist()
    largest = max(sizes)
    padded = torch.cat([tensor, tensor.new_zeros((largest - len(tensor), *tensor.shape[1:]))])
    shares = gather_equal(padded).split(largest)
    rows = torch.cat([share[:size] for share, size in zip(shares, sizes, strict=True)])
    return Gathered(rows, sum(sizes[: rank()]))


class Counts(NamedTuple):
    """How many rows are sent to each rank, and how many are received from each."""

    leaving: list[int]
    arriving: list[int]

    def back(self) -> Counts:
        """Return the counts for sending one row back for each row received."""
        return Counts(self.arriving, self.leaving)


def exchange_counts(leaving: Tensor) -> Counts:
    """Tell all ranks how many rows this one sends to each, `leaving`. One host synchronisation."""
    if world_size() == 1:
        return Counts([int(leaving)], [int(leaving)])
    arriving = torch.empty_like(leaving)
    dist.all_to_all_single(arriving, leaving)
    return Counts(*torch.stack([leaving, arriving]).tolist())


def exchange(rows: Tensor, counts: Counts) -> Tensor:
    """Send the first leaving[0] rows to rank 0, the next leaving[1] to rank 1, and so on.

    Returns the received rows in rank order, without gradient and host synchronisation.
    """
    if world_size() == 1:
        return rows
    came = rows.new_empty(sum(counts.arriving), *rows.shape[1:])
    dist.all_to_all_single(came, rows.contiguous(), counts.arriving, counts.leaving)
    return came


def permuted(rows: Tensor, order: Tensor) -> Tensor:
    """Permute the rows of all ranks by `order`; return this rank's share, without gradient.

    All ranks have the same number of rows, and the same order, a tensor on the host. So each
    rank knows what to send, and each row is sent once.
    """
    if world_size() == 1:
        return rows[order.to(rows.device)]
    share = len(rows)
    host: NDArray[Any] = np.from_dlpack(order)  # raises for a tensor on a device
    owners = host[rank() * share : (rank() + 1) * share] // share
    places = np.flatnonzero(host // share == rank())  # of this rank's rows, afterwards
    leaving, arriving = (
        np.bincount(each, minlength=world_size()) for each in (places // share, owners)
    )
    sent = rows[_copy_to_device(rows, host[places] - rank() * share)]
    came = exchange(sent, Counts(leaving.tolist(), arriving.tolist()))
    # Received rows are sorted by rank, and those of one rank by their place in the order.
    found = _copy_to_device(rows, owners.argsort(kind="stable"))
    return torch.empty_like(came).index_copy_(0, found, came)


def _copy_to_device(tensor: Tensor, indices: Any) -> Tensor:
    return torch.from_numpy(indices).to(tensor.device, non_blocking=True)


def sum_over_ranks(tensor: Tensor, group: Group | None = None) -> Tensor:
    """Sum over ranks, with gradient."""
    if world_size() == 1:
        return tensor
    return cast(Tensor, _SumOverRanks.apply(tensor, group))  # type: ignore[no-untyped-call]


class _SumOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: Group | None) -> Tensor:
        ctx.group = group
        total = tensor.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        total = grad.clone()
        dist.all_reduce(total, group=ctx.group)
        return total, None


def sum_in_place(tensor: Tensor) -> Tensor:
    """Sum over ranks, without gradient."""
    if world_size() > 1:
        dist.all_reduce(tensor)
    return tensor


def max_in_place(tensor: Tensor) -> Tensor:
    """Take the element-wise maximum over ranks, without gradient."""
    if world_size() > 1:
        dist.all_reduce(tensor, dist.ReduceOp.MAX)
    return tensor


def broadcast(tensor: Tensor, source: int = 0) -> Tensor:
    """Overwrite `tensor` with the tensor of the source rank, without gradient."""
    if world_size() > 1:
        dist.broadcast(tensor, source)
    return tensor


def broadcast_object(thing: Thing, source: int = 0) -> Thing:
    """Return the source rank's picklable object on every rank."""
    if world_size() == 1:
        return thing
    box = [thing]
    dist.broadcast_object_list(box, source)
    return box[0]


def gather_objects(thing: Thing) -> list[Thing]:
    """Return the picklable objects of all ranks, in rank order, on every rank."""
    if world_size() == 1:
        return [thing]
    things: list[Any] = [None] * world_size()
    dist.all_gather_object(things, thing)
    return cast("list[Thing]", things)


def any_rank(flag: bool) -> bool:
    """Return whether the flag is true on any rank. All get the same answer, by one all-reduce."""
    if world_size() == 1:
        return flag
    return bool(max_in_place(torch.tensor(float(flag), device=backend_device())))


def barrier() -> None:
    if initialized() and world_size() > 1:
        dist.barrier()
