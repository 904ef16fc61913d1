"""The last feature map of the judged trunks, for protocols on what is where in an image."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from sslengine.engine.build import build_base_model
from sslengine.engines.features import Compute
from sslengine.engines.judged_images import Judged
from sslengine.engines.judged_networks import REFERENCE, networks_of
from sslengine.engines.stored import Network
from sslengine.errors import ConfigError, DataError
from sslengine.models.build import trunk_with_heads
from sslengine.models.trunks.base import Trunk
from sslengine.monitor.run_facts import PIXELS

SETTINGS = "MODEL.FEATURE_EVAL_SETTINGS"


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


def networks_with_maps(judged: Judged, layer: str, where: str) -> list[Network]:
    """The networks, whose features are maps; without pixels."""
    return [replace(each, compute=_with_maps(each.compute, where))
            for each in networks_with(judged, [layer]) if each.name != PIXELS]  # fmt: skip


def networks_with(judged: Judged, layers: Sequence[str]) -> list[Network]:
    """The networks with these features of the trunk, not pooled, and pixels. A reference may be
    another trunk: it is left out."""
    changes = {
        f"{SETTINGS}.LINEAR_EVAL_FEAT_POOL_OPS_MAP": [[each, ["Identity", []]] for each in layers],
        f"{SETTINGS}.SHOULD_FLATTEN_FEATS": False,
    }
    networks, _ = networks_of(judged.run_with(changes), judged.weights)
    return [each for each in networks if each.name != REFERENCE]


def _with_maps(compute: Compute, where: str) -> Compute:
    def maps(images: Any) -> dict[str, Tensor]:
        high, wide = images.shape[-2:]
        return {name: as_map(name, each, where, high / wide)
                for name, each in compute(images).items()}  # fmt: skip

    return maps


def as_map(name: str, features: Tensor, where: str, ratio: float = 1.0) -> Tensor:
    """Rows of patches, or a map, as a map. ratio: of the image's height to its width."""
    if features.ndim == 4:
        return features
    count = features.shape[1] if features.ndim == 3 else 0
    side = round(math.sqrt(count * ratio))
    if not side or count % side or round(side / ratio) != count // side:
        raise DataError(
            f"{where}: {name} is no map: a batch of it has shape {tuple(features.shape)}."
        )
    return features.transpose(1, 2).reshape(len(features), -1, side, count // side)
