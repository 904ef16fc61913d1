"""The features of all training images, computed once and kept in the run's folder.

`<run>/predictor/index.torch` stores a hash of its checkpoint, transforms, images and labels; if one
of these changes, it is computed again. Features have unit length and take four bytes per number:
8 GB for a million images of 2048 dimensions.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from sslengine.atomic import whole_file
from sslengine.data.fingerprint import hash_here
from sslengine.data.loading.dataset import SSLDataset
from sslengine.models.weights.read import expect_file

log = logging.getLogger("sslengine")

FORMAT = 2
PIECE = 2**16  # training images compared at once


@dataclass(frozen=True)
class Index:
    features: Tensor  # images x dimensions, of unit length
    labels: Tensor | None  # indexed by image number
    numbers: Tensor  # image number of each row; images that could not be read have no row

    def nearest(self, query: Tensor, count: int) -> tuple[list[float], list[int]]:
        """(cosine similarities, image numbers), the most similar first."""
        unit = F.normalize(query.float().flatten(), dim=0)
        pieces = [piece @ unit for piece in self.features.split(PIECE)]
        found = torch.cat(pieces).topk(min(count, len(self.features)))
        return found.values.tolist(), self.numbers[found.indices].tolist()


def unit_length(features: Tensor) -> Tensor:
    return F.normalize(features.flatten(1).float())


def key_of(checkpoint: str, transforms: Any, dataset: SSLDataset) -> str:
    """A hash of all that the features and labels depend on."""
    parts = [FORMAT, checkpoint, transforms, hash_here(dataset)]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def load_or_make(path: Path, key: str, make: Callable[[], Index]) -> Index:
    """The index in the file if it has this key; a new one otherwise."""
    found = _load(path, key)
    if found is None:
        found = make()
        _store(path, key, found)
    return found


def _load(path: Path, key: str) -> Index | None:
    if not path.exists():
        return None
    try:
        expect_file(path)
        stored = torch.load(path, map_location="cpu", weights_only=True)
        if stored["key"] == key:
            return Index(stored["features"], stored["labels"], stored["numbers"])
        log.info("%s belongs to another model or other images: computing it again", path)
    except Exception as error:  # torch raises many kinds for a broken file
        log.warning("%s cannot be read (%s): computing it again", path, error)
    return None


def _store(path: Path, key: str, index: Index) -> None:
    try:
        with whole_file(path) as file:
            torch.save({"key": key, **vars(index)}, file)
    except OSError as error:
        log.warning("%s cannot be written (%s): it will be computed again", path, error)
