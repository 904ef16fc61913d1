"""Features that other programs computed, and stores of this one: rows and labels of each split.

    .npy                  a matrix, which is not read whole; labels from another file
    .npz                  `features` and, if there are some, `labels`
    .parquet, .csv, .tsv  as `sslengine embed` writes them: `features` (lists), or feature_0,
                          feature_1 ...; and `label`, or label_A, label_B ...
    .pt, .pth             a tensor, or a dict with `features` and `labels`
    a folder              of a store; of stores of both splits; of `extract_features`' files

What labels there are: given_labels.py.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.lib.format import open_memmap, read_array
from numpy.typing import NDArray
from torch import Tensor

from sslengine.data.manifest.tables import find_delimiter, unescape_formula
from sslengine.errors import ConfigError, DataError, MissingDataError, listing, readable
from sslengine.evaluate.feature_files import layers_in, read_features
from sslengine.evaluate.features import Rows
from sslengine.evaluate.given_labels import (
    LABELS,
    GivenLabels,
    find_in_arrays,
    find_in_table,
    parse_objects,
    parse_text,
)
from sslengine.evaluate.store import MANIFEST, Store, StoredRows

FEATURES = ("features", "feature", "embedding", "embeddings", "x")


@dataclass(frozen=True)
class Given:
    """Of one split."""

    source: str
    layer: str
    rows: Rows
    labels: GivenLabels | None


def read_given(path: Path, labels: Path | None = None) -> Given:
    """One split, from a file or a store's folder. labels: a file of them alone."""
    if path.is_dir():
        store = Store.read(path)
        found = _read_store(store, store.layers[-1])
    else:
        file = _open(path)
        found = Given(str(path), path.stem, file.rows(), file.labels(False))
    if not len(found.rows) or len(found.rows.shape) < 2:
        shape = tuple(found.rows.shape)
        raise DataError(
            f"{path}: expected a row of features for each image, got the shape {shape}."
        )
    if labels is not None:
        found = replace(found, labels=read_labels(labels))
    _expect_labels(found.labels, len(found.rows))
    return found


def _expect_labels(labels: GivenLabels | None, rows: int) -> None:
    if labels is None:
        return
    if labels.values.ndim not in (1, 2):
        raise DataError(
            f"{labels.where}: expected a label, or a row of indicators, for each row of features; "
            f"got the shape {labels.values.shape}."
        )
    if len(labels.values) != rows:
        raise DataError(
            f"{labels.where}: has {len(labels.values)} labels for {rows} rows of features."
        )


def pairs_in(folder: Path) -> Iterator[tuple[str, Given, Given]]:
    """Yield a name, training and test features for each layer of a folder of both splits."""
    stores = {split: {_network(each): each for each in _stores(folder, split)}
              for split in ("train", "test")}  # fmt: skip
    for network, store in stores["train"].items():
        other = stores["test"].get(network)
        if other is not None:
            name = store.folder.name.removeprefix("train-")
            yield from ((name, _read_store(store, layer), _read_store(other, layer))
                        for layer in store.layers)  # fmt: skip
    for layer in layers_in(folder, "train"):
        if layer in layers_in(folder, "test"):
            train, test = (_read_files(folder, split, layer) for split in ("train", "test"))
            yield folder.name, train, test


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


def read_labels(path: Path) -> GivenLabels:
    """A file of labels alone, or those of a file that has features too."""
    file = _open(path)
    found = file.labels(True)
    if found is None:
        raise DataError(
            f"{path}: has no column or array {listing(LABELS)}; there is {listing(file.names)}."
        )
    return found


# ---- files


@dataclass(frozen=True)
class _File:
    names: Sequence[str]  # of its columns or arrays
    rows: Callable[[], Rows]
    labels: Callable[[bool], GivenLabels | None]  # alone: the file is one of labels


def _open(path: Path) -> _File:
    if not path.exists():
        raise MissingDataError(f"{path}: there is no such file or folder.")
    if (read := READERS.get(path.suffix.lower())) is None:
        raise ConfigError(f"{path}: expected a folder, or a file that ends in {listing(READERS)}.")
    if path.is_file() and not path.stat().st_size:
        raise DataError(f"{path}: the file is empty.")
    return read(path)


def _open_text(path: Path) -> _File:
    """Open a label a line, without the empty lines at the end."""
    with path.open(encoding="utf-8-sig", errors="surrogateescape") as file:
        lines = _drop_empty_end([line.strip() for line in file])
    labels = GivenLabels(str(path), parse_text(lines))
    return _File((), lambda: torch.empty(0), lambda alone: labels if alone else None)


def _drop_empty_end(lines: list[Any]) -> list[Any]:
    while lines and not lines[-1]:
        lines.pop()
    return lines


def _open_npy(path: Path) -> _File:
    def labels(alone: bool) -> GivenLabels | None:
        return GivenLabels(str(path), _array(path)) if alone else None

    return _File((), lambda: _map(path), labels)


def _map(path: Path) -> Rows:
    try:
        mapped: NDArray[Any] = open_memmap(path, mode="r")
    except Exception as error:  # what it raises depends on the file
        raise _unreadable(path, error) from error
    return torch.from_numpy(np.array(mapped)) if mapped.ndim < 2 else StoredRows([mapped])


def _array(path: Path) -> NDArray[Any]:
    try:
        with path.open("rb") as stream:
            found: NDArray[Any] = read_array(stream, allow_pickle=False)
    except Exception as error:  # what it raises depends on the file
        raise _unreadable(path, error) from error
    return found


def _open_npz(path: Path) -> _File:
    try:
        with path.open("rb") as stream:
            held = np.load(stream, allow_pickle=False)
            if isinstance(held, np.ndarray):
                raise ValueError("it is one array, whose file ends in .npy")
            return _hold_arrays(path, {name: held[name] for name in held.files})
    except Exception as error:  # what it raises depends on the file
        raise _unreadable(path, error) from error


def _hold_arrays(path: Path, held: Mapping[str, NDArray[Any]]) -> _File:
    def labels(alone: bool) -> GivenLabels | None:
        found = find_in_arrays(str(path), held)
        single = alone and found is None and len(held) == 1
        return GivenLabels(str(path), next(iter(held.values()))) if single else found

    return _File([*held], lambda: _matrix(path, held), labels)


def _unreadable(path: Path, error: Exception, how: str = "") -> DataError:
    return DataError(f"{path}: cannot be read{how}: {error or type(error).__name__}")


def _open_torch(path: Path) -> _File:
    try:
        held = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # what it raises depends on the file
        raise _unreadable(path, error, " without running code") from error
    held = held if isinstance(held, dict) else {"features": held}
    tensors = ((name, each) for name, each in held.items() if isinstance(each, Tensor))
    return _hold_arrays(path, {name: _make_array(each) for name, each in tensors})


def _make_array(tensor: Tensor) -> NDArray[Any]:
    """numpy has no bfloat16."""
    tensor = tensor.detach()
    found: NDArray[Any] = (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
    return found


def _matrix(path: Path, held: Mapping[str, NDArray[Any]]) -> Tensor:
    named = [name for name in FEATURES if name in held]
    matrices = [name for name, each in held.items()
                if each.ndim > 1 and np.issubdtype(each.dtype, np.floating)]  # fmt: skip
    if not named and len(matrices) != 1:
        raise DataError(f"{path}: expected an array `features`; there is {listing(held)}.")
    return torch.from_numpy(np.ascontiguousarray(held[(named or matrices)[0]]))


def _open_parquet(path: Path) -> _File:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise DataError(f"{path}: to read it install pyarrow: pip install pyarrow.") from None
    try:
        table: Any = parquet.read_table(path)
    except (OSError, ArrowException) as error:
        raise _unreadable(path, error) from error
    _expect_rows(path, len(table))
    names = table.column_names

    def cells(name: str) -> Sequence[Any]:
        return table[name].to_pylist()  # type: ignore[no-any-return]

    def rows() -> Tensor:
        lists = [name for name in FEATURES if name in names]
        if lists:
            return torch.from_numpy(_stack_lists(path, lists[0], table[lists[0]].combine_chunks()))
        return torch.from_numpy(_columns(path, names, lambda name: np.asarray(table[name])))

    return _File(names, rows, lambda _: find_in_table(str(path), names, cells, parse_objects))


def _stack_lists(path: Path, name: str, column: Any) -> NDArray[Any]:
    from pyarrow import ArrowException, compute

    try:
        lengths = compute.list_value_length(column).unique().to_pylist()
        values = np.array(column.flatten(), dtype=np.float32)
    except (ArrowException, TypeError, ValueError) as error:
        raise DataError(f"{path}: column {name!r}: expected lists of numbers: {error}") from error
    if len(lengths) != 1 or None in lengths:
        raise DataError(f"{path}: the lists in {name!r} have different lengths.")
    return values.reshape(len(column), -1)


def _open_csv(path: Path) -> _File:
    with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        delimiter = find_delimiter(path, file.readline())
        file.seek(0)
        try:
            lines = _drop_empty_end(list(csv.reader(file, delimiter=delimiter)))
        except csv.Error as error:
            raise _unreadable(path, error) from error
    names, lines = (lines[0], lines[1:]) if lines else ([], [])
    _expect_rows(path, len(lines))
    if len(names) == 1:  # an empty cell of the only column is an empty line
        lines = [line or [""] for line in lines]
    if any(len(line) != len(names) for line in lines):
        raise DataError(f"{path}: lines have different numbers of columns.")
    columns = dict(zip(names, zip(*lines)))

    def rows() -> Tensor:
        return torch.from_numpy(_columns(path, names, lambda name: np.array(columns[name])))

    def cells(name: str) -> Sequence[str]:
        return [*map(unescape_formula, columns[name])]

    return _File(names, rows, lambda _: find_in_table(str(path), names, cells, parse_text))


def _expect_rows(path: Path, count: int) -> None:
    if not count:
        raise DataError(f"{path}: expected a row for each image, and it has none.")


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
    return np.stack([_numbers(path, name, column(name)) for name in chosen], axis=1)


def _numbers(path: Path, name: str, cells: NDArray[Any]) -> NDArray[Any]:
    try:
        return cells.astype(np.float32)
    except (TypeError, ValueError):
        number = next(number for number, each in enumerate(cells) if not _is_number(each))
        wrong = readable(cells[number])[:80]
        raise DataError(
            f"{path}: column {name!r}, row {number + 1}: expected a number, got {wrong!r}."
        ) from None


def _is_number(cell: Any) -> bool:
    try:
        np.array([cell]).astype(np.float32)
    except (TypeError, ValueError):
        return False
    return True


READERS: Mapping[str, Callable[[Path], _File]] = {
    ".npy": _open_npy, ".npz": _open_npz, ".pt": _open_torch, ".pth": _open_torch,
    ".parquet": _open_parquet, ".csv": _open_csv, ".tsv": _open_csv, ".txt": _open_text,
}  # fmt: skip
