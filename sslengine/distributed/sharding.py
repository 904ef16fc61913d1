"""One model, a share of it on each rank, by torch's `fully_shard` (FSDP2).

A unit of the model is gathered whole just before it is computed and freed right after, so
a rank holds its share of everything and all of one or two units. Every parameter is cut along
its first dimension; to the outside it is a DTensor, and an optimizer sees the rank's share.

torch's own modules for it are imported where something is sharded: they are a second of CPU time.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeGuard, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_map_only

from sslengine.distributed.collectives import sum_in_place
from sslengine.distributed.ranks import rank, world_size
from sslengine.errors import ConfigError

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor


@dataclass(frozen=True)
class Policy:
    """compute: of weights and inputs while a unit runs; reduce: in which gradients are added."""

    compute: torch.dtype | None = None
    reduce: torch.dtype | None = None

    @property
    def is_mixed(self) -> bool:
        return self.compute not in (None, torch.float32)


# FSDP2 asks a stream for events, which torch 2.6 has for GPUs alone.
ON_CPU = hasattr(torch.cpu.Stream, "record_event")


def mesh_of(device: torch.device) -> DeviceMesh:
    """All ranks in a row."""
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh(device.type, (world_size(),))


def shard(root: nn.Module, units: Sequence[nn.Module], mesh: DeviceMesh, policy: Policy) -> None:
    """Cut the model in place. `units`: what is gathered at a time, inner ones first.

    The root is none of them: torch would keep it whole between forward and backward. Under
    mixed precision batch norms stay in float32, as their statistics are.
    """
    if mesh.device_type == "cpu" and not ON_CPU:
        raise ConfigError(
            f"config.TRAINER.TASK_NAME: a model cannot be sharded on CPUs with torch "
            f"{torch.__version__}. Use a newer torch, GPUs, or self_supervision_task."
        )
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    common = {"mesh": mesh, "reshard_after_forward": True}
    if policy.is_mixed:
        norm = MixedPrecisionPolicy(torch.float32, policy.reduce, output_dtype=policy.compute)
        for module in root.modules():
            if isinstance(module, _BatchNorm) and any(True for _ in module.parameters()):
                fully_shard(module, mp_policy=norm, **common)  # type: ignore[call-overload]
    inner = MixedPrecisionPolicy(policy.compute, policy.reduce)
    for unit in units:
        unit.register_forward_hook(_own_memory)
        fully_shard(unit, mp_policy=inner, **common)  # type: ignore[call-overload]
    output = torch.float32 if policy.is_mixed else None
    outer = MixedPrecisionPolicy(policy.compute, policy.reduce, output_dtype=output)
    fully_shard(root, mp_policy=outer, **common)  # type: ignore[call-overload]


def shard_method(method: nn.Module, mesh: DeviceMesh, reduce: torch.dtype | None) -> None:
    """Cut a method's own parameters. It computes in float32; copies in it are cut already."""
    for name, parameter in method.named_parameters():
        if not parameter.ndim:
            raise ConfigError(
                f"config.TRAINER.TASK_NAME: the parameter loss.{name} of {type(method).__name__} "
                f"is a single number, which cannot be sharded. Give it the shape (1,), or use "
                f"self_supervision_task."
            )
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy(reduce_dtype=reduce)
    fully_shard(method, mesh=mesh, reshard_after_forward=True, mp_policy=policy)  # type: ignore[call-overload]


def _own_memory(module: nn.Module, inputs: Any, output: Any) -> Any:
    """On a view (of a transformer's first token, say) an operation in place would undo the hook
    by which torch gathers the unit again in the backward pass.
    """
    return tree_map_only(Tensor, lambda each: each.clone() if each._is_view() else each, output)


def is_sharded(thing: Tensor | nn.Module | None) -> bool:
    return is_share(thing) or is_unit(thing)


def is_share(thing: Any) -> TypeGuard[DTensor]:
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(thing, module.DTensor)


def is_unit(thing: Any) -> TypeGuard[FSDPModule]:
    module = sys.modules.get("torch.distributed.fsdp")
    return module is not None and isinstance(thing, module.FSDPModule)


def local(tensor: Tensor) -> Tensor:
    """This rank's share, in the same memory; any other tensor as it is."""
    return tensor.to_local() if is_share(tensor) else tensor


def whole(tensor: Tensor) -> Tensor:
    """All of it, on every rank. Collective if it is sharded."""
    return tensor.full_tensor() if is_share(tensor) else tensor


def like(tensor: Tensor, other: Tensor) -> Tensor:
    """Sharded if `other` is: the share of a whole tensor. Whole if it is not: collective then."""
    if not is_share(other):
        return whole(tensor)
    from torch.distributed.tensor import DTensor

    share = local(tensor) if is_share(tensor) else _share(tensor)
    return DTensor.from_local(
        share.to(other.device),
        other.device_mesh,
        other.placements,
        run_check=False,
        shape=tensor.shape,
        stride=other.stride(),
    )


def _share(tensor: Tensor) -> Tensor:
    chunks = tensor.chunk(world_size())
    return chunks[rank()] if rank() < len(chunks) else tensor[:0]


@torch.no_grad()
def copy_into(target: Tensor, source: Tensor) -> None:
    """`target.copy_(source)`, whichever of them is sharded."""
    local(target).copy_(local(like(source, target)))


def norms(*groups: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The length of each tensor, a vector for each group of them; the groups are alike.

    Of sharded tensors the lengths of all: one collective, no host synchronisation.
    """
    every = [each for group in groups for each in group]
    lengths = torch.stack(torch._foreach_norm([local(each) for each in every]))
    if is_share(every[0]):
        lengths = sum_in_place(lengths.square()).sqrt()
    return lengths.view(len(groups), -1).unbind()


@contextmanager
def gathered(module: nn.Module) -> Iterator[None]:
    """Within it a unit is whole, for a use of its weights outside of its forward. Collective."""
    if not is_unit(module):
        yield
        return
    module.unshard()
    try:
        yield
    finally:
        module.reshard()


@contextmanager
def gradients_kept(*modules: FSDPModule) -> Iterator[None]:
    """Within it backward leaves each rank its own gradients, whole: it takes their memory."""
    for module in modules:
        module.set_requires_gradient_sync(False)
    try:
        yield
    finally:
        for module in modules:
            module.set_requires_gradient_sync(True)


def on_mesh(share: Tensor, shape: torch.Size, stride: tuple[int, ...], mesh: DeviceMesh) -> Tensor:
    """This rank's share of a tensor as one of all ranks."""
    from torch.distributed.tensor import DTensor, Shard

    made = DTensor.from_local(share, mesh, [Shard(0)], run_check=False, shape=shape, stride=stride)
    return cast(Tensor, made)
