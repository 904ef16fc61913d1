"""`dense` of EVALUATE.PROTOCOLS: what the patches of frozen maps know of masks.

Images and masks are resized to a square. The map is `lastMAP` or `lastPATCH` of a vision
transformer, of other trunks the last feature that has more than one place; EVALUATE.DENSE.LAYER
names another. Of raw pixels it is the image averaged to 16 x 16.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from sslengine.data.judged_view import described
from sslengine.distributed.ranks import is_primary
from sslengine.engines.judged_images import Found, Judged
from sslengine.engines.judged_networks import PIXELS
from sslengine.engines.maps import judged_trunk, last_map, networks_with_maps
from sslengine.engines.masks import Masks
from sslengine.engines.stored import Network, StoredSplit
from sslengine.errors import DataError
from sslengine.evaluation.dense import dense
from sslengine.evaluation.options import DenseOptions

WHERE = "config.EVALUATE.DENSE.LAYER"


def of_maps(judged: Judged) -> Found:
    if judged.test != "TEST":
        raise DataError("there are no test images.")
    options: DenseOptions = judged.dense
    masks = {split: Masks(judged, split) for split in ("TRAIN", "TEST")}
    for split, each in masks.items():
        each.of(judged.splits[split].dataset, 0)  # before the features are computed
    side = options.SIDE or judged.side
    layer = options.LAYER or last_map(judged, judged_trunk(judged), side, WHERE)
    view = judged.before_tensor(
        {"name": "Resize", "size": [side, side], "interpolation": 3}, all_before=True
    )
    pixels = Network(PIXELS, _pixel_map, {"map": "16x16"})
    networks = [*networks_with_maps(judged, layer, WHERE), pixels]
    found = {
        split: judged.stored(
            split, {**_some(judged, split), f"DATA.{split}.TRANSFORMS": view}, networks
        )
        for split in masks
    }
    if not is_primary():
        return {}
    about = {"layer": layer, "pooling": "none", "view": described(view)}
    return {(each.name, layer): _judge(judged, each, found, masks, about) for each in networks}


def _some(judged: Judged, split: str) -> dict[str, Any]:
    options: DenseOptions = judged.dense
    limit, count = options.IMAGES, len(judged.splits[split].dataset)
    return {f"DATA.{split}.DATA_LIMIT": limit} if 0 < limit < count else {}


def _judge(
    judged: Judged,
    network: Network,
    found: dict[str, StoredSplit],
    masks: dict[str, Masks],
    about: dict[str, Any],
) -> Any:
    options: DenseOptions = judged.dense
    maps_of: list[Tensor] = []
    masks_of: list[Tensor] = []
    for split, stored in found.items():
        store = stored.stores[network.name]
        (name,) = store.layers
        maps = store.layer(name).tensor()
        high, wide = maps.shape[2:]
        patch = max(1, round((options.SIDE or judged.side) / high))
        size = (wide * patch, high * patch)
        rows = [masks[split].of(stored.dataset, int(each), size) for each in store.indices]
        maps_of.append(maps)
        masks_of.append(torch.from_numpy(np.stack(rows)))
    (train, test), (train_masks, test_masks) = maps_of, masks_of
    ignored = tuple(options.IGNORED)
    outcome = dense(train, train_masks, test, test_masks, ignored, judged.run.device)
    images = {"train": len(train), "test": len(test)}
    patches = {"map": [*train.shape[2:]], "patch": patch, "images": images}
    details = {
        **outcome.details,
        **about,
        **patches,
        "network": network.about.get("network", network.name),
    }
    if network.name == PIXELS:
        details["layer"] = name
    return replace(outcome, details=details)


def _pixel_map(images: Tensor) -> dict[str, Tensor]:
    return {"16x16": F.adaptive_avg_pool2d(images, 16)}
