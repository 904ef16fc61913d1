"""Weights of a trunk that took other images: their number of channels."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from torch import Tensor

from sslengine.errors import CheckpointError
from sslengine.models.options import WeightsInitOptions

LOG = logging.getLogger("sslengine")
RGB = 3


def fit_channels(
    expected: Mapping[str, Tensor], given: Mapping[str, Tensor], weights: WeightsInitOptions
) -> dict[str, Tensor]:
    """The given tensors, with filters for RGB adapted to the channels of the model, if asked."""
    fitted = dict(given)
    for name, tensor in expected.items():
        if name not in given or not _differs_in_channels(tensor, given[name]):
            continue
        told = f"{name} takes {RGB} channels in {weights.PARAMS_FILE}, {tensor.shape[1]} here"
        if not weights.ADAPT_INPUT_CHANNELS:
            raise CheckpointError(
                f"config.MODEL.WEIGHTS_INIT: {told}. To start from these filters as timm does "
                f"(summed for one channel; else in turn, scaled by 3 / channels), set "
                f"config.MODEL.WEIGHTS_INIT.ADAPT_INPUT_CHANNELS=true."
            )
        from timm.models import adapt_input_conv  # a second of CPU time

        LOG.warning("%s: adapted as timm does (ADAPT_INPUT_CHANNELS).", told)
        fitted[name] = adapt_input_conv(tensor.shape[1], given[name])
    return fitted


def _differs_in_channels(ours: Tensor, theirs: Tensor) -> bool:
    """And in nothing else: filters N x C x H x W."""
    return (
        ours.ndim == theirs.ndim == 4
        and theirs.shape[1] == RGB != ours.shape[1]
        and ours.shape[::2] == theirs.shape[::2]
        and ours.shape[3] == theirs.shape[3]
    )
