"""Copies of a model that follow it slowly: teachers and momentum encoders.

    teacher = m * teacher + (1 - m) * student, for every parameter

Buffers (the statistics of batch norms) are the copy's own business: they move with its
own forward passes, and `rank_0_statistics` makes them the same on all ranks.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn

from sslengine.distributed.data_parallel import broadcast_all, by_dtype
from sslengine.distributed.sharding import copy_into, like, local

Module = TypeVar("Module", bound=nn.Module)


def frozen_copy(model: Module) -> Module:
    """A copy that shares nothing with the model and takes no gradient."""
    return copy.deepcopy(model).requires_grad_(False)


Pairs = Sequence[tuple[Tensor, Tensor]]


def pairs_of(teacher: nn.Module, student: nn.Module) -> Pairs:
    """To be made once: to walk through a network takes longer than to move it."""
    return list(zip(teacher.parameters(), student.parameters(), strict=True))


@torch.no_grad()
def follow(pairs: Pairs, momentum: float) -> None:
    """One step of each teacher's parameter towards the student's, in one kernel for all.

    Each rank moves its share of a sharded teacher; one that is not gathers its student.
    """
    mine: list[Tensor] = [local(each) for each, _ in pairs]
    theirs: list[Tensor] = [local(like(each, own)) for own, each in pairs]
    torch._foreach_lerp_(mine, theirs, 1.0 - momentum)


@torch.no_grad()
def copy_buffers(teacher: nn.Module, student: nn.Module) -> None:
    """Copy the running statistics of the student's batch norms, and all its other buffers."""
    theirs = dict(zip(teacher.buffers(), student.buffers(), strict=True))
    for own in by_dtype(theirs):
        torch._foreach_copy_(own, [theirs[each] for each in own])


@torch.no_grad()
def start_as(teacher: nn.Module, student: nn.Module) -> None:
    """Parameters and buffers, into a copy that was made before."""
    own, theirs = teacher.state_dict(), student.state_dict()
    for name, tensor in own.items():
        copy_into(tensor, theirs[name])


def rising_momentum(base: float, where: float) -> float:
    """From `base` to 1 along half a cosine, as `where` goes from 0 to 1 (BYOL, DINO)."""
    return 1.0 - (1.0 - base) * (math.cos(math.pi * where) + 1.0) / 2.0


def rank_0_statistics(teacher: nn.Module) -> None:
    """Rank 0's batch norm statistics on every rank, as DDP keeps them for the model.

    For after a forward pass in which each rank has seen its own images.
    """
    broadcast_all(each for each in teacher.buffers() if each.is_floating_point())
