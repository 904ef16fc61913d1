"""Batch norm with the statistics of several ranks, on any device.

torch's SyncBatchNorm does not accept tensors on the CPU, and DDP does not accept a CPU model that
contains one. This class is not a subclass of it. On the CPU it computes the same result with
differentiable sums over ranks, whose batches may differ in size; on a GPU it runs torch's forward.

Without it a batch norm behind the pooling gets one row of a rank's batch of one image, and cannot
train on it: `expect_several_rows` finds that in the first step of a phase.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from sslengine.distributed.collectives import sum_over_ranks
from sslengine.distributed.process_group import Group, neighbours
from sslengine.distributed.ranks import world_size
from sslengine.errors import ConfigError
from sslengine.models.options import SyncBatchNormOptions


def synchronise(model: nn.Module, options: SyncBatchNormOptions, ranks_per_node: int) -> nn.Module:
    """Convert batch norms as configured. Collective, because it creates process groups."""
    if not options.CONVERT_BN_TO_SYNC_BN or world_size() == 1:
        return model
    size = ranks_per_node if options.GROUP_SIZE == -1 else options.GROUP_SIZE
    return convert(model, neighbours(size))


def convert(model: nn.Module, group: Group | None) -> nn.Module:
    """Make every batch norm of the model a SyncBatchNorm; parameters and buffers stay."""
    for norm in model.modules() if world_size() > 1 else ():
        if isinstance(norm, _BatchNorm) and not isinstance(norm, SyncBatchNorm):
            norm.__class__ = SyncBatchNorm  # type: ignore[assignment]
            cast(SyncBatchNorm, norm).process_group = group
    return model


def expect_several_rows(parts: Sequence[nn.Module], sizes: Sequence[int]) -> None:
    """Let the next forward pass raise ConfigError if a batch norm would get one row of a batch.

    sizes: of the batches that follow. Costs something only if one of them has one image.
    """
    if 1 not in sizes:
        return
    for norm in {each for part in parts for each in part.modules() if isinstance(each, _BatchNorm)}:
        if not isinstance(norm, SyncBatchNorm):
            _watch(norm, sizes[0])


def _watch(norm: nn.Module, images: int) -> None:
    def look(module: nn.Module, inputs: Any) -> None:
        handle.remove()
        x = inputs[0]
        if module.training and x.numel() == images * x.shape[1]:  # a row of each image
            what = "The last batch of an epoch has" if images > 1 else "A batch has"
            raise ConfigError(
                f"config.DATA.TRAIN.BATCHSIZE_PER_REPLICA: {what} one image on a rank, of which a "
                f"batch norm gets one row; it needs two or more to train. Raise it; of a short "
                f"last batch, set config.DATA.TRAIN.DROP_LAST=true; of several ranks, "
                f"config.MODEL.SYNC_BN_CONFIG.CONVERT_BN_TO_SYNC_BN=true."
            )

    handle = norm.register_forward_pre_hook(look)


class SyncBatchNorm(_BatchNorm):
    # torch's forward, called below, uses these methods.
    _check_input_dim = nn.SyncBatchNorm._check_input_dim
    _check_non_zero_input_channels = nn.SyncBatchNorm._check_non_zero_input_channels

    process_group: Group | None

    def __deepcopy__(self, memo: dict[int, Any]) -> SyncBatchNorm:
        """Copy the module (for a teacher, an average of weights); the process group is shared."""
        memo[id(self.process_group)] = self.process_group
        copied = self.__new__(type(self))
        memo[id(self)] = copied
        copied.__dict__ = copy.deepcopy(self.__dict__, memo)
        return copied

    def forward(self, x: Tensor) -> Tensor:
        """Norm, then run the children: timm's batch norms contain dropout and activation."""
        out = self._normed(x)
        for following in self.children():
            out = following(out)
        return out

    def _normed(self, x: Tensor) -> Tensor:
        if not (self.training or self.running_mean is None):
            return super().forward(x)
        if x.device.type != "cpu":
            return nn.SyncBatchNorm.forward(self, x)  # type: ignore[arg-type]
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        mean, variance, count = self._moments(wide)
        if self.training and self.track_running_stats:
            self._track(mean.detach(), variance.detach(), count)
        scale = (variance + self.eps).rsqrt()
        if self.weight is not None:
            scale = scale * self.weight
        out = (wide - _along_channels(mean, x)) * _along_channels(scale, x)
        if self.bias is not None:
            out = out + _along_channels(self.bias, x)
        return out.to(x.dtype)

    def _moments(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return mean, biased variance and count of every channel.

        The variance is reduced after the mean: in one pass, E[x^2] - E[x]^2 would cancel
        where the mean is large compared to the deviation.
        """
        dims = [dim for dim in range(x.dim()) if dim != 1]
        count = x.new_tensor([x.numel() // x.shape[1]])
        sums = sum_over_ranks(torch.cat([x.sum(dims), count]), self.process_group)
        count = sums[-1].detach()
        mean = sums[:-1] / count
        squares = (x - _along_channels(mean, x)).square().sum(dims)
        return mean, sum_over_ranks(squares, self.process_group) / count, count

    @torch.no_grad()
    def _track(self, mean: Tensor, variance: Tensor, count: Tensor) -> None:
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        # Without a momentum, running statistics are averages over all batches.
        momentum = 1 / self.num_batches_tracked if self.momentum is None else self.momentum
        unbiased = variance * count / (count - 1)
        for running, new in ((self.running_mean, mean), (self.running_var, unbiased)):
            running.add_(momentum * (new.to(running.dtype) - running))


def _along_channels(values: Tensor, x: Tensor) -> Tensor:
    """Reshape C values so that they broadcast against N x C x ..."""
    return values.view(1, -1, *(1,) * (x.dim() - 2))
