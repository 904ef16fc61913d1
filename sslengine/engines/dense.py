"""`dense` of EVALUATE.PROTOCOLS: what the patches of frozen maps know of masks.

Images and masks are resized to a square. The map is `lastMAP` or `lastPATCH` of a vision
transformer, of other trunks the last feature that has more than one place; EVALUATE.DENSE.LAYER
names another. Of raw pixels it is the image averaged to 16 x 16.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from sslengine.config.sections import read
from sslengine.data.judged_view import described
from sslengine.data.loading.dataset import SSLDataset
from sslengine.data.options import DataOptions
from sslengine.distributed.ranks import is_primary
from sslengine.engine.build import build_base_model
from sslengine.engines.features import Compute, Network, StoredSplit
from sslengine.engines.judged_networks import REFERENCE, networks_of
from sslengine.engines.on_images import Found, Judged
from sslengine.errors import ConfigError, DataError
from sslengine.evaluate.dense import dense
from sslengine.evaluate.store import StoredRows
from sslengine.models.build import trunk_with_heads
from sslengine.models.trunks.base import Trunk
from sslengine.monitor.run_facts import PIXELS
from sslengine.registry import PROTOCOLS

SETTINGS = "MODEL.FEATURE_EVAL_SETTINGS"
WHERE = "config.EVALUATE.DENSE.LAYER"


@PROTOCOLS.register("dense")
def judge_dense(judged: Judged) -> Found:
    """Collective."""
    maps = stored_maps(judged)
    found: Found = {}
    for network in maps.networks if is_primary() else ():
        (train, known), (test, wanted) = (
            (maps.read(split, network), maps.read_masks(split, network)) for split in maps.splits
        )
        options = judged.EVALUATE.DENSE
        outcome = dense(train, known, test, wanted, options.IGNORED, judged.run.device)
        details = {**outcome.details, **maps.about(network, train, test)}
        found[network.name, maps.layer] = replace(outcome, details=details)
    return found


@dataclass(frozen=True)
class Maps:
    """The maps of the images of both splits, and their masks."""

    judged: Judged
    networks: Sequence[Network]
    splits: dict[str, StoredSplit]
    layer: str
    side: int
    view: list[dict[str, Any]]

    def read(self, split: str, network: Network) -> Tensor:
        """N x D x h x w."""
        return self._rows(split, network).tensor()

    def _rows(self, split: str, network: Network) -> StoredRows:
        store = self.splits[split].stores[network.name]
        return store.layer(store.layers[0])

    def patch(self, maps: Tensor | StoredRows) -> int:
        """Its side in pixels."""
        return max(1, round(self.side / maps.shape[2]))

    def read_masks(self, split: str, network: Network) -> Tensor:
        """Read the masks of the network's images, of whole patches."""
        maps = self._rows(split, network)
        high, wide = (count * self.patch(maps) for count in maps.shape[2:])
        masks = self.masks(split, network)
        return torch.from_numpy(np.stack([resize_mask(mask, (wide, high)) for mask in masks]))

    def masks(self, split: str, network: Network) -> Iterator[NDArray[Any]]:
        stored = self.splits[split]
        for number in stored.stores[network.name].indices.tolist():
            yield find_mask(self.judged, split, stored.dataset, number)

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
    for split, each in judged.splits.items():
        find_mask(judged, split, each.dataset, 0)  # before the features are computed
    side = options.SIDE or judged.side
    layer = options.LAYER or last_map(judged, judged_trunk(judged), side, WHERE)
    resize = {"name": "Resize", "size": [side, side], "interpolation": 3}
    view = judged.before_tensor(resize, all_before=True)
    pixels = Network(PIXELS, _pixel_map, {"map": "16x16"})
    networks = [*networks_with_maps(judged, layer, WHERE), pixels]
    splits = {}
    for split, each in judged.splits.items():
        some = {"DATA_LIMIT": options.IMAGES} if 0 < options.IMAGES < len(each.dataset) else {}
        changes = {**some, "TRANSFORMS": view}
        splits[split] = judged.stored(
            split, {f"DATA.{split}.{key}": value for key, value in changes.items()}, networks
        )
    return Maps(judged, networks, splits, layer, side, view)


def _pixel_map(images: Tensor) -> dict[str, Tensor]:
    return {"16x16": F.adaptive_avg_pool2d(images, 16)}


# ---- maps


def judged_trunk(judged: Judged) -> Trunk:
    """Build the trunk as initialised: for the names and shapes of its features."""
    model = build_base_model(judged.run.config, judged.run.device)
    return trunk_with_heads(model, "reading maps").trunk.eval()


@torch.no_grad()
def last_map(judged: Judged, trunk: Trunk, side: int, where: str) -> str:
    """Return its name. where: what names another, for a message."""
    for name in ("lastMAP", "lastPATCH"):
        if name in trunk.feature_names:
            return name
    (image,) = judged.splits["TRAIN"].dataset[0, 0]["data"]
    images = torch.zeros(1, len(image), side, side, device=judged.run.device)
    for name in reversed(trunk.feature_names):
        try:
            (found,) = trunk(images, [name])
        except ConfigError:
            continue
        if found.ndim == 4 and found.shape[2] * found.shape[3] > 1:
            return name
    raise DataError(
        f"{where}: {type(trunk).__name__} has no map of features for images of side {side}."
    )


def networks_with(judged: Judged, layers: Sequence[str]) -> list[Network]:
    """Return the networks with these features of the trunk, not pooled, and pixels.

    A reference may be another trunk: it is left out.
    """
    changes = {
        f"{SETTINGS}.LINEAR_EVAL_FEAT_POOL_OPS_MAP": [[each, ["Identity", []]] for each in layers],
        f"{SETTINGS}.SHOULD_FLATTEN_FEATS": False,
    }
    networks, _ = networks_of(judged.run_with(changes), judged.weights)
    return [each for each in networks if each.name != REFERENCE]


def networks_with_maps(judged: Judged, layer: str, where: str) -> list[Network]:
    """Return the networks, whose features are maps; without pixels."""
    networks = [each for each in networks_with(judged, [layer]) if each.name != PIXELS]
    return [replace(each, compute=_shape_maps(each.compute, where)) for each in networks]


def _shape_maps(compute: Compute, where: str) -> Compute:
    def maps(images: Any) -> dict[str, Tensor]:
        high, wide = images.shape[-2:]
        return {name: shape_map(name, each, where, high / wide)
                for name, each in compute(images).items()}  # fmt: skip

    return maps


def shape_map(name: str, features: Tensor, where: str, ratio: float = 1.0) -> Tensor:
    """Return rows of patches, or a map, as a map. ratio: of the image's height to its width."""
    if features.ndim == 4:
        return features
    count = features.shape[1] if features.ndim == 3 else 0
    side = round(math.sqrt(count * ratio))
    if not side or count % side or round(side / ratio) != count // side:
        raise DataError(
            f"{where}: {name} is no map: a batch of it has shape {tuple(features.shape)}."
        )
    return features.transpose(1, 2).reshape(len(features), -1, side, count // side)


# ---- masks


def find_mask(judged: Judged, split: str, dataset: SSLDataset, index: int) -> NDArray[Any]:
    """Return a class number for each pixel, from the config's folder or the source."""
    key, source, row = f"MASKS_{split}", dataset.sources[0], int(dataset.rows[index])
    where, options = f"config.EVALUATE.DENSE.{key}", judged.EVALUATE.DENSE
    folder = options.MASKS_TRAIN if split == "TRAIN" else options.MASKS_TEST
    if not folder:
        try:
            return source.mask(row).astype(np.int32)
        except DataError as error:
            raise DataError(f"{error} Name a folder of masks: {where}.") from None
    image = Path(source.path(row))
    images = (getattr(read(judged.run.config, DataOptions), split).DATA_PATHS or [""])[0]
    inside = image.relative_to(images) if image.is_relative_to(images) else image.name
    path = (Path(folder).expanduser() / inside).with_suffix(".png")
    if not path.is_file():
        raise DataError(f"{where}: there is no mask {path} of the image {image}.")
    return read_mask(path, where)


def read_mask(path: Path, where: str) -> NDArray[Any]:
    """Read a mask. where: the key of the config, for a message."""
    try:
        with Image.open(path, formats=["PNG"]) as picture:
            mask = np.array(picture)
    except OSError as error:
        raise DataError(f"{where}: {path} cannot be read as a PNG: {error}") from error
    if mask.ndim != 2:
        raise DataError(
            f"{where}: {path} has {mask.shape[-1]} channels; expected one number for each "
            f"pixel (a grey or palette PNG)."
        )
    return mask


def resize_mask(mask: NDArray[Any], size: tuple[int, int]) -> NDArray[np.int32]:
    """Resize a mask. size: width and height."""
    picture = Image.fromarray(mask.astype(np.int32))
    return np.array(picture.resize(size, Image.Resampling.NEAREST), np.int32)
