"""Train model and loss on several ranks: wrapped in DDP, or with manual reduction.

With manual reduction (`DISTRIBUTED.MANUAL_GRADIENT_REDUCTION`, and steps of several backward
passes, which DDP's hooks do not support), buffers are broadcast before forward, forward and
backward run inside `no_sync`, and gradients are reduced after them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
from torch.distributed import _broadcast_coalesced  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import _get_default_group as _default_group
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parallel import DistributedDataParallel

from sslengine.distributed.collectives import sum_in_place
from sslengine.distributed.ranks import world_size
from sslengine.distributed.sharding import gradients_kept, is_unit
from sslengine.errors import TrainingError


class OneForward(nn.Module):
    """Model and loss in one forward pass, as DDP needs all that it reduces."""

    def __init__(self, model: nn.Module, loss: nn.Module) -> None:
        super().__init__()
        self.model, self.loss = model, loss
        self.called = False

    def forward(self, *inputs: Any, compute: Callable[[], Any] | None = None, **named: Any) -> Any:
        """Run a step's computation; without one, the model alone, as VISSL's own steps do."""
        self.called = True
        return self.model(*inputs, **named) if compute is None else compute()


def wrap(
    model: nn.Module,
    loss: nn.Module,
    device: torch.device,
    bucket_cap_mb: int,
    find_unused_parameters: bool,
    broadcast_buffers: bool,
    compression: Any = None,
) -> nn.Module:
    """Wrap both in DDP. With one process, or without trainable parameters, return the model.

    Buffers of the loss (queues, centres, teachers) are its own to keep equal.
    compression: of gradients (contrib/compression.py).
    """
    both = OneForward(model, loss)
    if world_size() == 1 or not any(p.requires_grad for p in both.parameters()):
        return model
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(
        both, [f"loss.{name}" for name, _ in loss.named_buffers()]
    )
    fixed = compression is not None and compression.needs_fixed_buckets
    wrapped = DistributedDataParallel(
        both,
        device_ids=[device] if device.type == "cuda" else None,
        bucket_cap_mb=bucket_cap_mb,
        find_unused_parameters=find_unused_parameters or fixed,
        gradient_as_bucket_view=True,
        **{_BUFFERS: broadcast_buffers},  # type: ignore[arg-type]
    )
    if compression is not None:
        compression.register(wrapped)
    return wrapped


def expect_called(model: nn.Module) -> None:
    """Raise TrainingError if a step went past DDP: its gradients are of one rank's images alone."""
    if isinstance(model, DistributedDataParallel) and not model.module.called:
        raise TrainingError(
            "config.TRAINER.TRAIN_STEP_NAME: the step computes its loss without `task.model`, so "
            "its gradients are not reduced over ranks. Override a stage of TrainStep, or call "
            "`task.model(compute=...)`, as TrainStep.__call__ does."
        )


_MESSAGE = 2**25  # bytes

# torch 2.15 renamed DDP's argument.
_BUFFERS = (
    "forward_sync_buffers"
    if "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters
    else "broadcast_buffers"
)


def no_sync(model: nn.Module, method: nn.Module | None = None) -> AbstractContextManager[None]:
    """Make a context in which backward does not reduce gradients over ranks."""
    if isinstance(model, DistributedDataParallel):
        return model.no_sync()
    sharded = [each for each in (model, method) if is_unit(each)]
    return gradients_kept(*sharded) if sharded else nullcontext()


@torch.no_grad()
def broadcast_all(tensors: Iterable[Tensor]) -> None:
    """Copy rank 0's values into the tensors of all ranks, many in one message."""
    every = [each.detach() for each in tensors]
    if every and world_size() > 1:
        _broadcast_coalesced(_default_group(), every, _MESSAGE, 0)


def batch_norm_buffers(module: nn.Module) -> list[Tensor]:
    """List the buffers of batch norms. In a module without DDP they differ between ranks unless
    they are broadcast."""
    norms = (each for each in module.modules() if isinstance(each, _NormBase))
    return [buffer for norm in norms for buffer in norm.buffers(recurse=False)]


def manual_gradient_all_reduce(model: nn.Module) -> None:
    """Replace each gradient by its mean over ranks, with one message per dtype."""
    trained = [p for p in model.parameters() if p.requires_grad]
    means = mean_of_gradients(trained, [p.grad for p in trained])
    for parameter, mean in zip(trained, means, strict=True):
        parameter.grad = mean


def mean_of_gradients(
    parameters: Sequence[Tensor], gradients: Sequence[Tensor | None]
) -> list[Tensor | None]:
    """Average over ranks, in place where a gradient exists.

    A gradient that is None on some ranks counts as zero there. One that is None on all ranks
    stays None, as with one rank, so that it has no weight decay and momentum. A rank with a
    gradient of None needs a host synchronisation to find this out.
    """
    if world_size() == 1:
        return list(gradients)
    filled = [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, gradients)]
    lacked = {id(mean) for mean, given in zip(filled, gradients) if given is None}
    none_on_all: set[int] = set()
    for grads in group_dtypes(filled):
        missing = [number for number, grad in enumerate(grads) if id(grad) in lacked]
        owners = grads[0].new_ones(len(grads))  # sent along: how many ranks have each
        owners[missing] = 0
        flat = sum_in_place(_flatten_dense_tensors([*grads, owners])).div_(world_size())
        *means, owners = _unflatten_dense_tensors(flat, [*grads, owners])
        torch._foreach_copy_(grads, means)
        had = owners.tolist() if missing else []
        none_on_all.update(id(grads[number]) for number in missing if not had[number])
    return [None if id(mean) in none_on_all else mean for mean in filled]


def group_dtypes(tensors: Iterable[Tensor]) -> list[list[Tensor]]:
    groups: dict[torch.dtype, list[Tensor]] = {}
    for tensor in tensors:
        groups.setdefault(tensor.dtype, []).append(tensor)
    return list(groups.values())
