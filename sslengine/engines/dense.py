"""`dense` of EVALUATE.PROTOCOLS: what the patches of frozen maps know of masks.

Images and masks are resized to a square. The map is `lastMAP` or `lastPATCH` of a vision
transformer, of other trunks the last feature that has more than one place; EVALUATE.DENSE.LAYER
names another. Of raw pixels it is the image averaged to 16 x 16.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from sslengine.data.judged_view import described
from sslengine.distributed.ranks import is_primary
from sslengine.engines.judged_images import Found, Judged
from sslengine.engines.maps import Masks, judged_trunk, last_map, networks_with_maps
from sslengine.engines.stored import Network, StoredSplit
from sslengine.errors import DataError
from sslengine.evaluate.dense import dense
from sslengine.evaluate.outcome import Outcome
from sslengine.monitor.run_facts import PIXELS
from sslengine.registry import PROTOCOLS

WHERE = "config.EVALUATE.DENSE.LAYER"


@PROTOCOLS.register("dense")
def judge_dense(judged: Judged) -> Found:
    """Collective."""
    maps = stored_maps(judged)
    if not is_primary():
        return {}
    return {(each.name, maps.layer): _judge(judged, each, maps) for each in maps.networks}


def _judge(judged: Judged, network: Network, maps: Maps) -> Outcome:
    (train, known), (test, wanted) = (_read_masks(maps, each, network) for each in maps.splits)
    options = judged.EVALUATE.DENSE
    outcome = dense(train, known, test, wanted, options.IGNORED, judged.run.device)
    return replace(outcome, details={**outcome.details, **maps.about(network, train, test)})


def _read_masks(maps: Maps, split: str, network: Network) -> tuple[Tensor, Tensor]:
    """Masks of whole patches."""
    found = maps.read(split, network)
    patch, (high, wide) = maps.patch(found), found.shape[2:]
    rows = [*maps.read_masks(split, network, (wide * patch, high * patch))]
    return found, torch.from_numpy(np.stack(rows))


@dataclass(frozen=True)
class Maps:
    """Of the images of both splits, and their masks."""

    networks: Sequence[Network]
    splits: Mapping[str, StoredSplit]
    masks: Mapping[str, Masks]
    layer: str
    side: int
    view: list[dict[str, Any]]

    def read(self, split: str, network: Network) -> Tensor:
        """N x D x h x w."""
        store = self.splits[split].stores[network.name]
        return store.layer(store.layers[0]).tensor()

    def read_masks(
        self, split: str, network: Network, size: tuple[int, int] | None = None
    ) -> Iterator[NDArray[np.int32]]:
        """Read the masks of the network's images. size: width and height."""
        stored = self.splits[split]
        for each in stored.stores[network.name].indices:
            yield self.masks[split].read(stored.dataset, int(each), size)

    def patch(self, maps: Tensor) -> int:
        """Its side in pixels."""
        return max(1, round(self.side / maps.shape[2]))

    def about(self, network: Network, train: Tensor, test: Tensor) -> dict[str, Any]:
        (layer,) = self.splits["TRAIN"].stores[network.name].layers
        return {
            "layer": layer if network.name == PIXELS else self.layer, "pooling": "none",
            "view": described(self.view), "map": [*train.shape[2:]], "patch": self.patch(train),
            "images": {"train": len(train), "test": len(test)},
            "network": network.about.get("network", network.name),
        }  # fmt: skip


def stored_maps(judged: Judged) -> Maps:
    """Collective."""
    if judged.test != "TEST":
        raise DataError("there are no test images.")
    options = judged.EVALUATE.DENSE
    masks = {split: Masks(judged, split) for split in ("TRAIN", "TEST")}
    for split, each in masks.items():
        each.read(judged.splits[split].dataset, 0)  # before the features are computed
    side = options.SIDE or judged.side
    layer = options.LAYER or last_map(judged, judged_trunk(judged), side, WHERE)
    view = judged.before_tensor(
        {"name": "Resize", "size": [side, side], "interpolation": 3}, all_before=True
    )
    pixels = Network(PIXELS, _pixel_map, {"map": "16x16"})
    networks = [*networks_with_maps(judged, layer, WHERE), pixels]
    splits = {
        split: judged.stored(
            split, {**_some(judged, split), f"DATA.{split}.TRANSFORMS": view}, networks
        )
        for split in masks
    }
    return Maps(networks, splits, masks, layer, side, view)


def _some(judged: Judged, split: str) -> dict[str, Any]:
    options = judged.EVALUATE.DENSE
    limit, count = options.IMAGES, len(judged.splits[split].dataset)
    return {f"DATA.{split}.DATA_LIMIT": limit} if 0 < limit < count else {}


def _pixel_map(images: Tensor) -> dict[str, Tensor]:
    return {"16x16": F.adaptive_avg_pool2d(images, 16)}
