"""Momentum copies of a model: teachers and key encoders.

    teacher = m * teacher + (1 - m) * student, for every parameter

Buffers (batch norm statistics) are not averaged: the copy's forward passes update them, and
`rank_0_statistics` makes them equal on all ranks.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from sslengine.distributed.data_parallel import broadcast_all, group_dtypes
from sslengine.distributed.sharding import copy_into, is_share, like, local

Module = TypeVar("Module", bound=nn.Module)


def frozen_copy(model: Module) -> Module:
    """A copy without gradients that shares no tensors with the model."""
    return copy.deepcopy(model).requires_grad_(False)


class Pairs(NamedTuple):
    """The parameters of teacher and student; pairs of which one is sharded are separate."""

    teacher: list[Tensor]
    student: list[Tensor]
    sharded: list[tuple[Tensor, Tensor]]


def pairs_of(
    teacher: nn.Module, student: Iterable[Tensor], chosen: Callable[[str], bool] | None = None
) -> Pairs:
    """Make them once: listing parameters takes longer than `follow`. chosen: by name."""
    named = zip(teacher.named_parameters(), student, strict=True)
    pairs: list[tuple[Tensor, Tensor]] = [
        (own, each) for (name, own), each in named if chosen is None or chosen(name)
    ]
    sharded = [pair for pair in pairs if any(map(is_share, pair))]
    whole = [pair for pair in pairs if not any(map(is_share, pair))]
    return Pairs([own for own, _ in whole], [each for _, each in whole], sharded)


@torch.no_grad()
def follow(pairs: Pairs, momentum: float) -> None:
    """Average the teacher's parameters with the student's, in one kernel for all.

    Each rank updates its shard of a sharded teacher. For a teacher that is not sharded, a sharded
    student is gathered.
    """
    mine, theirs, sharded = pairs
    if sharded:
        mine = [*mine, *(local(own) for own, _ in sharded)]
        theirs = [*theirs, *(local(like(each, own)) for own, each in sharded)]
    torch._foreach_lerp_(mine, theirs, 1.0 - momentum)


@torch.no_grad()
def copy_buffers(teacher: nn.Module, student: nn.Module) -> None:
    """Copy the running statistics of the student's batch norms, and all its other buffers."""
    theirs = dict(zip(teacher.buffers(), student.buffers(), strict=True))
    for own in group_dtypes(theirs):
        torch._foreach_copy_(own, [theirs[each] for each in own])


@torch.no_grad()
def start_as(teacher: nn.Module, student: nn.Module) -> None:
    """Copy the student's parameters and buffers into the teacher."""
    own, theirs = teacher.state_dict(), student.state_dict()
    for name, tensor in own.items():
        copy_into(tensor, theirs[name])


def rising_momentum(base: float, where: float, end: float = 1.0, linear: bool = False) -> float:
    """Return what rises from `base` to `end` along half a cosine (BYOL, DINO) or a line."""
    left = 1.0 - where if linear else (math.cos(math.pi * where) + 1.0) / 2.0
    return end - (end - base) * left


def rank_0_statistics(teacher: nn.Module) -> None:
    """Copy rank 0's batch norm statistics to all ranks, as DDP does for the model.

    Call it after each forward pass of a copy in training, in which ranks have different images.
    The copy has no gradient: a backward pass needs the statistics of its forward pass unchanged.
    A method's batch norms with gradient need no call: the engine copies rank 0's before each test.
    """
    broadcast_all(each for each in teacher.buffers() if each.is_floating_point())
