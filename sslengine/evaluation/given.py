"""Features that other programs computed, and stores of this one: rows and labels of each split.

    .npy                  a matrix, which is not read whole; labels from another file
    .npz                  `features` and, if there are some, `labels`
    .parquet, .csv        as `sslengine embed` writes them: `features` (lists), or feature_0,
                          feature_1 ...; and `label`, or label_A, label_B ...
    .pt, .pth             a tensor, or a dict with `features` and `labels`
    a folder              of a store; of stores of both splits; of `extract_features`' files

What labels there are: given_labels.py.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sslengine.errors import ConfigError, DataError, MissingDataError, listing
from sslengine.evaluation.feature_files import layers_in, read_features
from sslengine.evaluation.features import Rows
from sslengine.evaluation.given_labels import LABELS, Labels, in_arrays, in_table, of_text
from sslengine.evaluation.store import MANIFEST, Store
from sslengine.evaluation.store import Rows as Stored

FEATURES = ("features", "feature", "embedding", "embeddings", "x")


@dataclass(frozen=True)
class Given:
    """Of one split."""

    source: str
    layer: str
    rows: Rows
    labels: Labels | None


def read_given(path: Path, labels: Path | None = None) -> Given:
    """One split, from a file or a store's folder. labels: a file of them alone."""
    if not path.exists():
        raise MissingDataError(f"{path}: there is no such file or folder.")
    if path.is_dir():
        store = Store.read(path)
        found = _of_store(store, store.layers[-1])
    elif (suffix := path.suffix.lower()) in READERS:
        rows, own = READERS[suffix](path)
        found = Given(str(path), path.stem, rows, own)
    else:
        raise ConfigError(f"{path}: expected a folder, or a file that ends in {listing(READERS)}.")
    if not len(found.rows) or len(found.rows.shape) < 2:
        shape = tuple(found.rows.shape)
        raise DataError(
            f"{path}: expected a row of features for each image, got the shape {shape}."
        )
    if labels is not None:
        found = replace(found, labels=read_labels(labels))
    if found.labels is not None and len(found.labels.values) != len(found.rows):
        raise DataError(
            f"{found.labels.where}: has {len(found.labels.values)} labels for {len(found.rows)} "
            f"rows of features."
        )
    return found


def pairs_in(folder: Path) -> Iterator[tuple[str, Given, Given]]:
    """Of a folder that holds both splits: a name, training and test features, for each layer."""
    stores = {split: {_network(each): each for each in _stores(folder, split)}
              for split in ("train", "test")}  # fmt: skip
    for network, train in stores["train"].items():
        test = stores["test"].get(network)
        if test is not None:
            name = train.folder.name.removeprefix("train-")
            yield from ((name, _of_store(train, layer), _of_store(test, layer))
                        for layer in train.layers)  # fmt: skip
    for layer in layers_in(folder, "train"):
        if layer in layers_in(folder, "test"):
            yield folder.name, _of_files(folder, "train", layer), _of_files(folder, "test", layer)


def _stores(folder: Path, split: str) -> list[Store]:
    return [Store.read(path.parent) for path in sorted(folder.glob(f"{split}-*/{MANIFEST}"))]


def _network(store: Store) -> str:
    """What both splits of a network have: all but the images and their view."""
    own = ("view", "images_sha256")
    return json.dumps({key: each for key, each in store.depends_on.items() if key not in own})


def _of_store(store: Store, layer: str) -> Given:
    folder = str(store.folder)
    return Given(folder, layer, store.layer(layer), Labels(folder, store.targets.numpy()))


def _of_files(folder: Path, split: str, layer: str) -> Given:
    found = read_features(folder, split, layer)
    labels = Labels(str(folder), found.targets.numpy())
    return Given(str(folder), layer, found.features, labels)


def read_labels(path: Path) -> Labels:
    if not path.exists():
        raise MissingDataError(f"{path}: there is no such file.")
    suffix = path.suffix.lower()
    if suffix == ".npy":
        return Labels(str(path), _array(path))
    if suffix == ".txt":
        return Labels(str(path), of_text(path.read_text().split()))
    if suffix in READERS:
        _, found = READERS[suffix](path)
        if found is not None:
            return found
        raise DataError(f"{path}: has no column or array {listing(LABELS)}.")
    expected = ".npy, .txt (one a line), .csv, .npz or .parquet"
    raise ConfigError(f"{path}: expected labels in {expected}.")


# ---- files

Read = tuple[Rows, Labels | None]


def _npy(path: Path) -> Read:
    mapped = _array(path, mmap_mode="r")
    if mapped.ndim < 2:
        return torch.from_numpy(np.array(mapped)), None
    return Stored([mapped]), None


def _array(path: Path, **how: Any) -> NDArray[Any]:
    try:
        found: NDArray[Any] = np.load(path, allow_pickle=False, **how)
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read: {error}") from error
    return found


def _npz(path: Path) -> Read:
    try:
        with np.load(path, allow_pickle=False) as file:
            held = {name: file[name] for name in file.files}
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read: {error}") from error
    return _of_dict(path, held)


def _torch(path: Path) -> Read:
    try:
        held = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # what it raises depends on the file
        raise DataError(f"{path}: cannot be read without running code: {error}") from error
    held = held if isinstance(held, dict) else {"features": held}
    return _of_dict(path, {name: each.numpy() for name, each in held.items()
                           if isinstance(each, Tensor)})  # fmt: skip


def _of_dict(path: Path, held: dict[str, NDArray[Any]]) -> Read:
    named = [name for name in FEATURES if name in held]
    matrices = [name for name, each in held.items()
                if each.ndim > 1 and np.issubdtype(each.dtype, np.floating)]  # fmt: skip
    if not named and len(matrices) != 1:
        raise DataError(f"{path}: expected an array `features`; there is {listing(held)}.")
    rows = torch.from_numpy(np.ascontiguousarray(held[(named or matrices)[0]]))
    return rows, in_arrays(str(path), held)


def _parquet(path: Path) -> Read:
    try:
        from pyarrow import parquet
    except ImportError:
        raise DataError(f"{path}: to read it install pyarrow: pip install pyarrow.") from None
    table = parquet.read_table(path)
    names = table.column_names
    lists = [name for name in FEATURES if name in names]
    if lists:
        column = table[lists[0]].combine_chunks()
        values = np.asarray(column.flatten(), dtype=np.float32)
        rows = values.reshape(len(table), -1) if len(values) % max(1, len(table)) == 0 else None
        if rows is None:
            raise DataError(f"{path}: the lists in {lists[0]!r} have different lengths.")
    else:
        rows = _columns(path, names, lambda name: np.asarray(table[name]))
    own = in_table(str(path), names, lambda name: table[name].to_pylist(), np.asarray)
    return torch.from_numpy(np.array(rows)), own


def _csv(path: Path) -> Read:
    with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        names, *lines = csv.reader(file)
    if any(len(line) != len(names) for line in lines):
        raise DataError(f"{path}: lines have different numbers of columns.")
    columns = dict(zip(names, zip(*lines)))
    rows = _columns(path, names, lambda name: np.array(columns[name]))
    return torch.from_numpy(rows), in_table(str(path), names, columns.__getitem__, of_text)


def _columns(
    path: Path, names: Sequence[str], column: Callable[[str], NDArray[Any]]
) -> NDArray[Any]:
    """feature_0, feature_1 ..., or all that are numbers."""
    chosen = [name for name in names if name.startswith("feature_")]
    chosen = chosen or [name for name in names if name not in LABELS and name.isdigit()]
    if not chosen:
        raise DataError(
            f"{path}: expected a column `features` of lists, or columns feature_0, feature_1 ...; "
            f"there is {listing(names)}."
        )
    return np.stack([column(name).astype(np.float32) for name in chosen], axis=1)


READERS: dict[str, Callable[[Path], Read]] = {
    ".npy": _npy,
    ".npz": _npz,
    ".parquet": _parquet,
    ".csv": _csv,
    ".pt": _torch,
    ".pth": _torch,
}
