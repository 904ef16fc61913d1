"""The last feature map of the judged trunks, for protocols on what is where in an image."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sslengine.engines.judged_images import Judged
from sslengine.errors import ConfigError, DataError
from sslengine.models.build import trunk_with_heads
from sslengine.models.trunks.base import Trunk
from sslengine.task.build import build_base_model


def judged_trunk(judged: Judged) -> Trunk:
    """As initialised: for the names and shapes of its features."""
    model = build_base_model(judged.run.config, judged.run.device)
    return trunk_with_heads(model, "reading maps").trunk.eval()


def last_map(judged: Judged, trunk: Trunk, side: int, where: str) -> str:
    """Its name. where: what names another, for a message."""
    (image,) = judged.splits["TRAIN"].dataset[0, 0]["data"]
    images = torch.zeros(1, len(image), side, side, device=judged.run.device)
    return _name_of_map(trunk, images, where)


@torch.no_grad()
def _name_of_map(trunk: Trunk, images: Tensor, where: str) -> str:
    for name in ("lastMAP", "lastPATCH"):
        if name in trunk.feature_names:
            return name
    for name in reversed(trunk.feature_names):
        try:
            (found,) = trunk(images, [name])
        except ConfigError:
            continue
        if found.ndim == 4 and found.shape[2] * found.shape[3] > 1:
            return name
    raise DataError(
        f"{where}: {type(trunk).__name__} has no map of features for images of side "
        f"{images.shape[-1]}."
    )


def as_map(name: str, features: Tensor, where: str) -> Tensor:
    """Rows of patches, or a map, as a map."""
    if features.ndim == 4:
        return features
    side = math.isqrt(features.shape[1]) if features.ndim == 3 else 0
    if not side or side**2 != features.shape[1]:
        raise DataError(
            f"{where}: {name} is no map: a batch of it has shape {tuple(features.shape)}."
        )
    return features.transpose(1, 2).reshape(len(features), -1, side, side)
