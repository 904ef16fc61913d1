"""Features that other programs computed, and stores of this one: rows and labels of each split.

    .npy                  a matrix, which is not read whole; labels from another file
    .npz                  `features` and, if there are some, `labels`
    .parquet, .csv, .tsv  as `sslengine embed` writes them: `features` (lists), or feature_0,
                          feature_1 ...; and `label`, or label_A, label_B ...
    .pt, .pth             a tensor, or a dict with `features` and `labels`
    .txt                  a label a line
    a folder              of a store; of stores of both splits; of files of the engine
                          `extract_features`, VISSL's or this one:
                          rank0_chunk0_train_res5_features.npy, and _targets.npy, _inds.npy

Labels are class numbers, -1: none; names, which are numbered in TRAIN's order, an empty one: none;
or rows of indicators 1, 0, or -1 for unknown. Where classes of indicators have names, columns of
the test set are put in TRAIN's order.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sslengine.data.manifest.tables import open_text
from sslengine.errors import ConfigError, DataError, MissingDataError, listing, nearest, readable
from sslengine.evaluate.features import Rows
from sslengine.evaluate.store import MANIFEST, Store, StoredRows

FEATURES = ("features", "feature", "embedding", "embeddings", "x")
LABELS = ("label", "labels", "target", "targets", "y", "class")
INDICATOR = "label_"  # and the name of the class whose indicators the column holds
ALONE = ""  # the name of the only array of a file
NUMBERS, TEXT, INDICATORS = "numbers", "text", "rows of indicators"
NOTHING = ""  # the kind of labels that are all missing

# The columns or arrays of a file, by name.
Columns = Mapping[str, NDArray[Any]]


class GivenLabels(NamedTuple):
    where: str  # the file
    values: NDArray[Any]
    classes: tuple[str, ...] = ()  # of rows of indicators, where the file names them


@dataclass(frozen=True)
class Given:
    """Of one split."""

    source: str
    layer: str
    rows: Rows
    labels: GivenLabels | None


def read_given(path: Path, labels: Path | None = None) -> Given:
    """Read one split, from a file or a store's folder. labels: a file of them alone."""
    if path.is_dir():
        store = Store.read(path)
        found = _read_store(store, store.layers[-1])
    else:
        columns = _read(path)
        own = None if ALONE in columns else _find_labels(path, columns)
        found = Given(str(path), path.stem, _find_rows(path, columns), own)
    if not len(found.rows) or len(found.rows.shape) < 2:
        shape = tuple(found.rows.shape)
        raise DataError(
            f"{path}: expected a row of features for each image, got the shape {shape}."
        )
    if labels is not None:
        found = replace(found, labels=read_labels(labels))
    if found.labels is not None:
        where, values, _ = found.labels
        if values.ndim not in (1, 2):
            raise DataError(f"{where}: expected a label, or a row of indicators, for each row.")
        if len(values) != len(found.rows):
            raise DataError(f"{where}: has {len(values)} labels for {len(found.rows)} rows.")
    return found


def read_labels(path: Path) -> GivenLabels:
    """Read a file of labels alone, or those of a file that has features too."""
    columns = _read(path)
    found = _find_labels(path, columns)
    if found is None and len(columns) == 1:
        found = GivenLabels(str(path), next(iter(columns.values())))
    if found is None:
        raise DataError(
            f"{path}: has no column or array {listing(LABELS)}; there is {listing(columns)}."
        )
    return found


# ---- folders


def pairs_in(folder: Path) -> Iterator[tuple[str, Given, Given]]:
    """Yield a name, training and test features for each layer of a folder of both splits."""
    train, test = (
        {_network(each): each for each in _stores(folder, split)} for split in ("train", "test")
    )
    for network in filter(test.__contains__, train):
        name = train[network].folder.name.removeprefix("train-")
        for layer in train[network].layers:
            yield name, _read_store(train[network], layer), _read_store(test[network], layer)
    for layer in layers_in(folder, "train"):
        if layer in layers_in(folder, "test"):
            one, other = (_read_files(folder, each, layer) for each in ("train", "test"))
            yield folder.name, one, other


def _stores(folder: Path, split: str) -> list[Store]:
    return [Store.read(path.parent) for path in sorted(folder.glob(f"{split}-*/{MANIFEST}"))]


def _network(store: Store) -> str:
    """Name what both splits of a network have: all but the images and their view."""
    own = ("view", "images_sha256")
    return json.dumps({key: each for key, each in store.depends_on.items() if key not in own})


def _read_store(store: Store, layer: str) -> Given:
    folder = str(store.folder)
    return Given(folder, layer, store.layer(layer), GivenLabels(folder, store.targets.numpy()))


def _read_files(folder: Path, split: str, layer: str) -> Given:
    found = read_features(folder, split, layer)
    labels = GivenLabels(str(folder), found.targets.numpy())
    return Given(str(folder), layer, found.features, labels)


# ---- files


def _read(path: Path) -> Columns:
    if not path.exists():
        raise MissingDataError(f"{path}: there is no such file or folder.")
    if (read := READERS.get(path.suffix.lower())) is None:
        raise ConfigError(f"{path}: expected a folder, or a file that ends in {listing(READERS)}.")
    try:
        return read(path)
    except DataError:
        raise
    except Exception as error:  # what a reader raises depends on the file
        raise DataError(
            f"{path}: cannot be read without running code: {error or type(error).__name__}"
        ) from error


def _read_npy(path: Path) -> Columns:
    return {ALONE: np.load(path, mmap_mode="r", allow_pickle=False)}


def _read_npz(path: Path) -> Columns:
    with path.open("rb") as file:
        return dict(np.load(file, allow_pickle=False))


def _read_torch(path: Path) -> Columns:
    held = torch.load(path, map_location="cpu", weights_only=True)
    held = held if isinstance(held, dict) else {ALONE: held}
    found = {name: each.detach() for name, each in held.items() if isinstance(each, Tensor)}
    return {name: (each.float() if each.dtype == torch.bfloat16 else each).numpy()
            for name, each in found.items()}  # fmt: skip


def _read_parquet(path: Path) -> Columns:
    try:
        from pyarrow import compute, parquet, types
    except ImportError:
        raise DataError(f"{path}: to read it install pyarrow: pip install pyarrow.") from None
    table: Any = parquet.read_table(path)
    found = {}
    for name in table.column_names:
        cells = table[name].combine_chunks()
        lists = types.is_nested(cells.type) and not cells.null_count
        if lists and len(compute.list_value_length(cells).unique()) == 1:
            found[name] = np.asarray(cells.flatten()).reshape(len(cells), -1)
        else:
            found[name] = _fill_missing(cells) if cells.null_count else np.asarray(cells)
    return found


def _fill_missing(cells: Any) -> NDArray[Any]:
    """Replace None by a missing label of the kind of the others."""
    known = [each for each in cells.to_pylist() if each is not None]
    first = known[0] if known else -1
    missing: Any = -1 if isinstance(first, (int, float)) else ""
    if isinstance(first, list):
        missing = [np.nan] * len(first)
    return np.asarray([missing if each is None else each for each in cells.to_pylist()])


def _read_csv(path: Path) -> Columns:
    names, read_rows = open_text(path, errors="surrogateescape")
    columns = zip(*read_rows(range(len(names)))) if names else ()
    return {name: np.array(cells) for name, cells in zip(names, columns)}


def _read_lines(path: Path) -> Columns:
    """Read a label a line; an empty line is none, at the end it does not count."""
    text = path.read_text(encoding="utf-8-sig", errors="surrogateescape").rstrip()
    return {ALONE: _parse_text(np.array([line.strip() for line in text.splitlines()]))}


READERS: Mapping[str, Callable[[Path], Columns]] = {
    ".npy": _read_npy, ".npz": _read_npz, ".pt": _read_torch, ".pth": _read_torch,
    ".parquet": _read_parquet, ".csv": _read_csv, ".tsv": _read_csv, ".txt": _read_lines,
}  # fmt: skip


def _find_rows(path: Path, columns: Columns) -> Rows:
    """Find the matrix `features`, columns feature_0, feature_1 ..., or the only matrix."""
    named = [name for name in FEATURES if name in columns]
    several = [name for name in columns if name.startswith("feature_")]
    several = several or [name for name in columns if name.isdigit()]
    if not named and several:
        cells = [_numbers(f"{path}: column {name!r}", columns[name]) for name in several]
        return torch.from_numpy(np.stack(cells, axis=1))
    matrices = [name for name, each in columns.items()
                if name == ALONE or (each.ndim > 1 and each.dtype.kind == "f")]  # fmt: skip
    if not named and len(matrices) != 1:
        raise DataError(
            f"{path}: expected `features`, lists or a matrix, or columns feature_0, feature_1 "
            f"...; there is {listing(columns)}."
        )
    found = columns[(named or matrices)[0]]
    if isinstance(found, np.memmap) and found.ndim > 1:
        return StoredRows([found])
    if found.dtype.kind not in "fiu":
        raise DataError(f"{path}: `features`: expected rows of numbers, all of one length.")
    return torch.from_numpy(np.array(found))


def _numbers(where: str, cells: NDArray[Any]) -> NDArray[Any]:
    try:
        return cells.astype(np.float32)
    except (TypeError, ValueError) as error:
        raise DataError(f"{where}: {readable(str(error))}") from None


# ---- labels


def _find_labels(path: Path, columns: Columns) -> GivenLabels | None:
    """Find `label`, or label_A, label_B ..., one for each class. Indicators may have `classes`."""
    is_text = path.suffix.lower() in (".csv", ".tsv")
    for name in filter(columns.__contains__, LABELS):
        values, classes = columns[name], columns.get("classes")
        if classes is not None and values.ndim == 2 and classes.shape == values.shape[1:]:
            return GivenLabels(str(path), values, tuple(map(str, classes)))
        return GivenLabels(str(path), _parse_text(values) if is_text else values)
    several = [name for name in columns if name.startswith(INDICATOR)]
    if len(several) < 2:
        return None
    cells = [_indicators(f"{path}: column {name!r}", columns[name]) for name in several]
    classes_of = tuple(name.removeprefix(INDICATOR) for name in several)
    return GivenLabels(str(path), np.stack(cells, 1), classes_of)


_CELLS = {
    **dict.fromkeys(("1", "1.0", "true"), 1),
    **dict.fromkeys(("0", "0.0", "false"), 0),
    **dict.fromkeys(("", "nan", "none", "-1", "-1.0"), -1),
}


def _indicators(where: str, cells: NDArray[Any]) -> NDArray[Any]:
    found = [_CELLS.get(str(cell).lower()) for cell in cells.tolist()]
    if None in found:
        wrong = readable(cells[found.index(None)])[:80]
        raise DataError(f"{where}: expected 1, 0, or nothing for unknown; got {wrong!r}.")
    return np.array(found, np.int8)


def _parse_text(cells: NDArray[Any]) -> NDArray[Any]:
    """Make numbers of cells, if all are whole that are not empty; otherwise names."""
    cells = np.char.strip(cells)
    with suppress(ValueError):
        numbers = np.where(cells == "", "nan", cells).astype(float)
        if _kind(numbers) != TEXT:
            return numbers
    return cells


def numbered(train: GivenLabels, test: GivenLabels) -> tuple[Tensor, Tensor]:
    """Make class numbers, or rows of indicators, of the same classes."""
    kinds = [_kind(train.values), _kind(test.values)]
    if len({*kinds} - {NOTHING}) > 1:
        raise DataError(
            f"labels of {train.where} are {kinds[0]}, those of {test.where} are {kinds[1]}: "
            f"expected the same kind in both."
        )
    kind = max(kinds, key=len)
    other = train if kinds[0] == kind else test  # whose form missing labels get
    given, wanted = (
        each if known else each._replace(values=np.full(
            (len(each.values), *other.values.shape[1:]), "" if kind == TEXT else -1))
        for each, known in zip((train, test), kinds)
    )  # fmt: skip
    if kind == TEXT:
        return _number_names(given.values, wanted.values)
    found = _sort_columns(given, wanted) if kind == INDICATORS else wanted.values
    first, second = (torch.from_numpy(np.nan_to_num(each, nan=-1).astype(np.int64))
                     for each in (given.values, found))  # fmt: skip
    return first, second


def _kind(labels: NDArray[Any]) -> str:
    if labels.ndim > 1:
        return INDICATORS
    if labels.dtype.kind not in "iufb":
        return TEXT if (labels.astype(str) != "").any() else NOTHING
    if not (labels >= 0).any():
        return NOTHING
    return NUMBERS if (labels[~np.isnan(labels)] % 1 == 0).all() else TEXT


def _sort_columns(train: GivenLabels, test: GivenLabels) -> NDArray[Any]:
    """Put the columns of test indicators in the order of the training ones."""
    own, other = (
        each.classes or [str(number) for number in range(each.values.shape[1])]
        for each in (train, test)
    )
    if train.classes and test.classes and sorted(train.classes) == sorted(test.classes):
        return test.values[:, [test.classes.index(name) for name in train.classes]]
    if len(own) != len(other) or (train.classes and test.classes):
        raise DataError(
            f"labels of {train.where} are rows of {len(own)} indicators ({listing(own)}), those "
            f"of {test.where} of {len(other)} ({listing(other)}): expected the same classes."
        )
    return test.values


def _number_names(train: NDArray[Any], test: NDArray[Any]) -> tuple[Tensor, Tensor]:
    given, wanted = train.astype(str), test.astype(str)
    names = np.unique(given[given != ""])
    unknown = wanted[(wanted != "") & ~np.isin(wanted, names)].tolist()
    if len(names) and unknown:
        raise DataError(
            f"the test features have the class {unknown[0]!r}, which the training features lack. "
            f"{nearest(unknown[0], names.tolist())}".rstrip()
        )
    first, second = (
        torch.from_numpy(np.where(each == "", -1, np.searchsorted(names, each)))
        for each in (given, wanted)
    )
    return first, second


# ---- files of the engine extract_features

_FILE = re.compile(r"rank(\d+)_chunk(\d+)_([a-z]+)_(.+)_features\.npy")


@dataclass(frozen=True)
class Labelled:
    """Rows in the order of the images. One that several ranks have, because VISSL pads the last
    batches, counts once."""

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
        np.concatenate([_read_array(path, kind) for path in paths])
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


def _read_array(features: Path, kind: str) -> NDArray[Any]:
    path = features.with_name(f"{features.name.removesuffix('features.npy')}{kind}.npy")
    try:
        found: NDArray[Any] = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{path}: cannot be read: {error}") from error
    return found
