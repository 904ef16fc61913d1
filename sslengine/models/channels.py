"""Adapt the first convolution of RGB weights to images with another number of channels."""

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
    """Return `given` with RGB filters adapted to the model's channels (ADAPT_INPUT_CHANNELS)."""
    fitted = dict(given)
    for name, tensor in expected.items():
        if name not in given or not _differs_in_channels(tensor, given[name]):
            continue
        mismatch = (
            f"{name} takes {RGB} channels in {weights.PARAMS_FILE}, {tensor.shape[1]} in the model"
        )
        if not weights.ADAPT_INPUT_CHANNELS:
            raise CheckpointError(
                f"config.MODEL.WEIGHTS_INIT: {mismatch}. To start from these filters as timm does "
                f"(summed for one channel; else repeated in turn, scaled by 3 / channels), set "
                f"config.MODEL.WEIGHTS_INIT.ADAPT_INPUT_CHANNELS=true."
            )
        from timm.models import adapt_input_conv  # importing timm takes a second

        LOG.warning("%s: adapted as timm does (ADAPT_INPUT_CHANNELS).", mismatch)
        fitted[name] = adapt_input_conv(tensor.shape[1], given[name])
    return fitted


def _differs_in_channels(ours: Tensor, theirs: Tensor) -> bool:
    """Whether two filters N x C x H x W differ in C alone, and theirs takes RGB."""
    return (
        ours.ndim == theirs.ndim == 4
        and theirs.shape[1] == RGB != ours.shape[1]
        and ours.shape[::2] == theirs.shape[::2]
        and ours.shape[3] == theirs.shape[3]
    )
