"""What a weight file's tensors become where the trunk has another size of image or more channels.

Position embeddings of patches, a square map, are interpolated bicubically as in timm and VISSL;
those of class tokens are not changed. Relative position biases (BEiT, Swin), a square map of
distances, are interpolated too. No other weight of a transformer depends on the size of the image.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from sslengine.errors import CheckpointError, DoesNotFitError
from sslengine.models.options import WeightsInitOptions

LOG = logging.getLogger("sslengine")
RGB = 3
# 1 x (tokens before the patches + patches) x width: here and in timm, and in torchvision. For each
# the patches in a column and in a row.
GRIDS: Mapping[str, Callable[[Any], Sequence[int] | None]] = {
    "pos_embed": lambda trunk: getattr(getattr(trunk, "patch_embed", None), "grid_size", None),
    "encoder.pos_embedding": lambda trunk: (trunk.image_size // trunk.patch_size,) * 2,
}
# (vertical distances * horizontal distances + entries of the class token) x heads
BIAS = ".relative_position_bias_table"


def fit_positions(trunk: nn.Module, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return `given` with embeddings and biases resized to the trunk's shapes where possible."""
    fitted = dict(given)
    tensors = {**dict(trunk.named_parameters()), **dict(trunk.named_buffers())}
    for name, ours in tensors.items():
        theirs = given.get(f"trunk.{name}")
        if theirs is None or theirs.shape == ours.shape:
            continue
        if name in GRIDS:
            fitted[f"trunk.{name}"] = _fit_embeddings(ours, theirs, GRIDS[name](trunk))
        elif name.endswith(BIAS):
            window: Any = trunk.get_submodule(name.removesuffix(BIAS)).window_size
            fitted[f"trunk.{name}"] = _fit_biases(ours, theirs, window)
    return fitted


def _fit_embeddings(ours: Tensor, theirs: Tensor, grid: Sequence[int] | None) -> Tensor:
    if grid is None:
        return theirs
    before = ours.shape[1] - math.prod(grid)
    side = math.isqrt(max(0, theirs.shape[1] - before)) if theirs.ndim == 3 else 0
    if not side or theirs.shape != (1, before + side**2, ours.shape[-1]):
        return theirs
    LOG.info("Position embeddings resized from %d x %d patches to %d x %d.", side, side, *grid)
    return torch.cat([theirs[:, :before], _resize(theirs[0, before:], side, grid)[None]], dim=1)


def _fit_biases(ours: Tensor, theirs: Tensor, window: Sequence[int]) -> Tensor:
    distances = [2 * side - 1 for side in window]
    with_class = len(ours) - math.prod(distances)
    side = math.isqrt(max(0, len(theirs) - with_class))
    if side % 2 == 0 or theirs.shape != (side**2 + with_class, *ours.shape[1:]):
        return theirs
    return torch.cat([_resize(theirs[: side**2], side, distances), theirs[side**2 :]])


def _resize(places: Tensor, side: int, size: Sequence[int]) -> Tensor:
    """Resize (side * side) x width, row by row, to (size[0] * size[1]) x width."""
    square = places.mT.unflatten(1, (side, side))[None].float()
    fitted = interpolate(square, tuple(size), mode="bicubic", antialias=True)
    return fitted[0].flatten(1).mT.to(places.dtype)


def fit_channels(
    expected: Mapping[str, Tensor], given: Mapping[str, Tensor], weights: WeightsInitOptions
) -> dict[str, Tensor]:
    """Return `given` with RGB filters adapted to the model's channels (ADAPT_INPUT_CHANNELS)."""
    fitted = dict(given)
    for name, tensor in expected.items():
        if name not in given or not _differ_in_channels(tensor, given[name]):
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


def _differ_in_channels(ours: Tensor, theirs: Tensor) -> bool:
    """Tell whether two filters N x C x H x W differ in C alone, and theirs takes RGB."""
    return (
        ours.ndim == theirs.ndim == 4
        and theirs.shape[1] == RGB != ours.shape[1]
        and ours.shape[::2] == theirs.shape[::2]
        and ours.shape[3] == theirs.shape[3]
    )


def expect_heads(trunk: nn.Module, folder: Path, where: str) -> None:
    """Raise if attention has other heads than config.json of a model of transformers says.

    No shape shows their number, and with another the features would be others.
    """
    own = {each.num_heads for each in trunk.modules()
           if isinstance(getattr(each, "num_heads", None), int)}  # fmt: skip
    said = _heads_said(folder / "config.json")
    if isinstance(said, int) and len(own) == 1 and {said} != own:
        raise DoesNotFitError(
            f"{where}: {folder / 'config.json'} says num_attention_heads {said}, and the trunk has "
            f"{own.pop()}. All shapes are the same, and its features would be others. Set the "
            f"number in config.MODEL.TRUNK, of a network of timm TIMM.arguments.num_heads={said}."
        )


def _heads_said(file: Path) -> Any:
    config: Any = None
    with suppress(OSError, ValueError):
        config = json.loads(file.read_text(encoding="utf-8"))
    if not isinstance(config, dict):
        return None
    images = config.get("vision_config")
    return (images if isinstance(images, dict) else config).get("num_attention_heads")
