"""Features in the files of the engine `extract_features`, VISSL's or this one:

    rank0_chunk0_train_res5_features.npy    and _targets.npy, _inds.npy

Rows are put in the order of the images. An image that several ranks have, because VISSL pads the
last batches, counts once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sslengine.errors import DataError, listing, nearest

_FILE = re.compile(r"rank(\d+)_chunk(\d+)_([a-z]+)_(.+)_features\.npy")


@dataclass(frozen=True)
class Labelled:
    features: Tensor
    targets: Tensor  # class numbers, or rows of indicators
    indices: Tensor  # of the images


def layers_in(folder: Path, split: str) -> list[str]:
    found = (_FILE.fullmatch(path.name) for path in _files(folder))
    return sorted({match[4] for match in found if match and match[3] == split.lower()})


def read_features(folder: Path, split: str, layer: str) -> Labelled:
    parts = {}
    for path in _files(folder):
        match = _FILE.fullmatch(path.name)
        if match and (match[3], match[4]) == (split.lower(), layer):
            parts[int(match[1]), int(match[2])] = path
    if not parts:
        known = layers_in(folder, split)
        raise DataError(
            f"{folder}: has no features {layer!r} of {split}; expected "
            f"{listing(known) or 'files such as rank0_chunk0_train_res5_features.npy'}. "
            f"{nearest(layer, known)}".rstrip()
        )
    paths = [parts[each] for each in sorted(parts)]
    rows, targets, indices = (
        np.concatenate([_read(path, kind) for path in paths])
        for kind in ("features", "targets", "inds")
    )
    if not len(rows) == len(targets) == len(indices):
        raise DataError(
            f"{folder}: {len(rows)} features {layer!r} of {split}, {len(targets)} targets and "
            f"{len(indices)} inds; expected equally many."
        )
    order, first = np.unique(indices, return_index=True)
    found = torch.from_numpy(rows[first]).float()
    return Labelled(found, class_numbers(targets[first]), torch.from_numpy(order))


def class_numbers(targets: NDArray[Any]) -> Tensor:
    """VISSL writes a column of class numbers, or rows of indicators."""
    whole = torch.from_numpy(np.ascontiguousarray(targets)).long()
    return whole.squeeze(1) if whole.ndim == 2 and whole.shape[1] == 1 else whole


def _files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise DataError(f"there is no folder {str(folder)!r} of features.")
    return sorted(folder.iterdir())


def _read(features: Path, kind: str) -> NDArray[Any]:
    path = features.with_name(f"{features.name.removesuffix('features.npy')}{kind}.npy")
    try:
        found: NDArray[Any] = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{path}: cannot be read: {error}") from error
    return found
