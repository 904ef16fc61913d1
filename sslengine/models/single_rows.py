"""Batch norms cannot train on one row: what is said of it, and early.

A rank whose batch has one image gives one row to a batch norm behind the pooling, unless a forward
pass has several views of it. If that batch is the last of an epoch, it is said in the first step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from sslengine.errors import ConfigError
from sslengine.models.sync_batchnorm import SyncBatchNorm

_TORCHS = "Expected more than 1 value per channel when training"
_WHAT_TO_DO = (
    "A batch norm needs two rows or more to train. Raise config.DATA.TRAIN.BATCHSIZE_PER_REPLICA; "
    "of a short last batch, set config.DATA.TRAIN.DROP_LAST=true; of several ranks, "
    "config.MODEL.SYNC_BN_CONFIG.CONVERT_BN_TO_SYNC_BN=true."
)


def is_of_single_row(error: Exception) -> bool:
    """Is it torch's, of a batch norm that got one row?"""
    return _TORCHS in str(error)


def said_of(what: str) -> str:
    return f"{what} has one image on a rank, and a batch norm gets one row of it. {_WHAT_TO_DO}"


def watch(parts: Sequence[nn.Module], sizes: Sequence[int]) -> None:
    """sizes: of the batches that follow. Raise in the first of them what a later one would end in.

    Costs something only if a later batch has one image.
    """
    if not sizes or sizes[0] == 1 or 1 not in sizes:
        return
    for each in {norm for part in parts for norm in part.modules() if isinstance(norm, _BatchNorm)}:
        if not isinstance(each, SyncBatchNorm):
            _watch(each, sizes[0])


def _watch(norm: nn.Module, images: int) -> None:
    def look(module: nn.Module, inputs: Any) -> None:
        handle.remove()
        x = inputs[0]
        if module.training and x.numel() == images * x.shape[1]:
            raise ConfigError(said_of("The last batch of an epoch"))

    handle = norm.register_forward_pre_hook(look)
