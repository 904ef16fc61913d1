"""What a run is made of: made once, before the first step, and never replaced (make_parts.py).

What steps change is in `RunState`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from sslengine.distributed.shard_files import Peers
from sslengine.precision import Precision
from sslengine.services.order import Services
from sslengine.task.feeds import Feeds
from sslengine.task.plan import Plan

Verbs = Sequence[Callable[[Any], None]]


@dataclass(frozen=True, eq=False)
class Exchange:
    """What ranks exchange for the model and the method in addition to DDP."""

    reduce_by_hand: bool  # gradients: DDP does not
    reduced_by_hand: nn.Module | None  # whose gradients follow when the backward is done
    broadcasts_buffers: bool  # rank 0's are every rank's
    broadcast_buffers_by_hand: bool  # before each forward


@dataclass(frozen=True, eq=False)
class Parts:
    seed: int
    feeds: Feeds
    plan: Plan
    base_model: nn.Module
    model: nn.Module  # as steps call it: wrapped for data parallel training, if there is any
    loss: nn.Module
    learner: nn.Module  # both: all that is trained, by name
    loss_takes_sample: bool
    before_phase: Verbs  # of the method
    after_backward: Verbs
    after_update: Verbs
    train_step_function: Callable[[Any], Any]
    optimizer: Any
    precision: Precision
    exchange: Exchange
    compression: Any  # of the gradients that ranks exchange; None: none
    peers: Peers | None
    meters: list[Any]
    train_meters: list[Any]
    own_hooks: list[Any]  # those of the loss, and of a model that brings some
    hooks: list[Any]
    services: Services
    code: dict[str, str]  # of the user: the hash of each module, or the name of a part
