"""Shard a model over ranks with torch's `fully_shard` (FSDP2).

A unit of the model is gathered just before it is computed and freed right after it, so a rank
holds its shard of all parameters, and one or two whole units. Every parameter is split along its
first dimension. It is a DTensor; the optimizer updates the rank's shard.

torch's FSDP modules are imported on first use: the import takes a second of CPU time.
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

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor


@dataclass(frozen=True)
class Policy:
    """compute: dtype of weights and inputs in a unit. reduce: dtype of the gradients' sum."""

    compute: torch.dtype | None = None
    reduce: torch.dtype | None = None

    @property
    def is_mixed(self) -> bool:
        return self.compute not in (None, torch.float32)


def mesh_of(device: torch.device) -> DeviceMesh:
    """Make a one-dimensional mesh of all ranks."""
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh(device.type, (world_size(),))


def shard(root: nn.Module, units: Sequence[nn.Module], mesh: DeviceMesh, policy: Policy) -> None:
    """Shard the model in place. `units`: the modules that are gathered one at a time, inner ones
    first.

    The root must not be one of them: torch keeps it whole between forward and backward. In mixed
    precision batch norms compute in float32, as their statistics do.
    """
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
    root.register_forward_hook(_own_memory)
    output = torch.float32 if policy.is_mixed else None
    outer = MixedPrecisionPolicy(policy.compute, policy.reduce, output_dtype=output)
    fully_shard(root, mp_policy=outer, **common)  # type: ignore[call-overload]


def shard_method(method: nn.Module, mesh: DeviceMesh, reduce: torch.dtype | None) -> None:
    """Shard the parameters of a method, which computes in float32. Teachers in it are sharded
    already."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy(reduce_dtype=reduce)
    fully_shard(method, mesh=mesh, reshard_after_forward=True, mp_policy=policy)  # type: ignore[call-overload]


def _own_memory(module: nn.Module, inputs: Any, output: Any) -> Any:
    """Copy outputs that are views (a transformer's first token, for example): an in-place
    operation on a view would remove the hook that gathers the unit in the backward pass.
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
    """Return this rank's shard, in the same memory; unchanged, a tensor that is not sharded."""
    return tensor.to_local() if is_share(tensor) else tensor


def whole(tensor: Tensor) -> Tensor:
    """Return the whole tensor on every rank. Collective if it is sharded."""
    return tensor.full_tensor() if is_share(tensor) else tensor


def like(tensor: Tensor, other: Tensor) -> Tensor:
    """Shard the tensor like `other`; if `other` is not sharded, gather it whole (collective)."""
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
    """Copy as `target.copy_(source)`, where any of them may be sharded."""
    local(target).copy_(local(like(source, target)))


def norms(*groups: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return the norms of the tensors, one vector for each group; all groups have the same number.

    Sharded tensors need one collective, without host synchronisation.
    """
    every = [each for group in groups for each in group]
    lengths = torch.stack(torch._foreach_norm([local(each) for each in every]))
    if is_share(every[0]):
        lengths = sum_in_place(lengths.square()).sqrt()
    return lengths.view(len(groups), -1).unbind()


@contextmanager
def gathered(module: nn.Module) -> Iterator[None]:
    """Make a unit whole in a context, to use its weights outside of forward. Collective."""
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
    """Keep backward from reducing gradients in a context: each rank has whole ones."""
    for module in modules:
        module.set_requires_gradient_sync(False)
    try:
        yield
    finally:
        for module in modules:
            module.set_requires_gradient_sync(True)


def make_dtensor(
    share: Tensor, shape: torch.Size, stride: tuple[int, ...], mesh: DeviceMesh
) -> Tensor:
    """Make the sharded tensor of which `share` is this rank's part."""
    from torch.distributed.tensor import DTensor, Shard

    made = DTensor.from_local(share, mesh, [Shard(0)], run_check=False, shape=shape, stride=stride)
    return cast(Tensor, made)
