"""`huggingface_dataset`: a dataset of the package `datasets` on disk, as save_to_disk left it, or
as the hub ships it: parquet files with the images in them.

DATA_PATHS is its folder, or one parquet file. One with several splits gives TRAIN its `train`, and
TEST its `validation`, `val` or `test`, whichever is there first. IMAGE_COLUMN and LABEL_COLUMN name
the columns; without them the image is the one column of images, and the label the one of class
labels, or the one called `label`. Images are read as the bytes that are stored, without decoding.

A parquet file cannot be read row by row, so `datasets` copies the rows once into its own cache
($HF_DATASETS_CACHE), from where they are mapped into memory.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

try:
    import datasets
except ImportError:
    datasets = None

from sslengine.data.options import ColumnOptions, SplitOptions, own
from sslengine.data.sources.base import DataSource, EncodedSource
from sslengine.data.sources.class_numbers import ClassNumbers, LabelError, all_known, count_classes
from sslengine.data.sources.parts import of_split
from sslengine.data.sources.paths import data_path, how_far
from sslengine.data.sources.regular_file import read_file
from sslengine.data.sources.split_names import SPLITS
from sslengine.data.sources.tables import expect_column
from sslengine.errors import DataError, MissingDataError, listing
from sslengine.registry import register_data_source

log = logging.getLogger("sslengine")


@register_data_source("huggingface_dataset")
class HuggingFaceSource(EncodedSource):
    needs_path = True

    def __init__(self, options: SplitOptions, split: str, position: int = 0) -> None:
        super().__init__(options, split, position)
        self._split = split
        self._root, self.where = data_path(options, split, position)
        rows = _load(self._root, split, self.where)
        columns = own(options, ColumnOptions)
        self._image = image_column(rows.features, columns.IMAGE_COLUMN, self, split, self._root)
        self._label = self._label_column(rows, columns.LABEL_COLUMN)
        self._separator = columns.LABEL_SEPARATOR
        self._labels: NDArray[Any] | None = None
        if self._label:
            self._labels, self.class_names = self._read_labels(rows)
        largest = 0 if self._labels is None else count_classes(self._labels)
        self.num_classes = len(self.class_names) or largest
        # Workers get the names of its files, which `datasets` maps into memory.
        stored = datasets.Image(decode=False)
        self._rows = rows.select_columns([self._image]).cast_column(self._image, stored)

    def __len__(self) -> int:
        return len(self._rows)

    def read(self, index: int) -> bytes:
        stored = self._rows[index][self._image]
        if stored is None or not (stored["bytes"] or stored["path"]):
            raise ValueError("the row has no image")
        content: bytes = stored["bytes"] or read_file(stored["path"])
        return content

    def labels(self) -> NDArray[np.generic]:
        if self._labels is None:
            raise DataError(
                f"{self.where}: labels are asked for, and no column is one of class labels or "
                f"called label. Name it in config.DATA.{self._split}.LABEL_COLUMN."
            )
        return all_known(
            self._labels,
            lambda missing: (
                f"{self.where}: labels are asked for, and {missing.size} of {len(self)} rows have "
                f"none in the column {self._label!r} (nan, None or -1), the first is row "
                f"{int(missing[0])}. Leave such rows out, or train without LABEL_SOURCES."
            ),
        )

    def column(self, name: str, where: str) -> list[Any]:
        rows = _load(self._root, self._split, self.where)
        expect_column(rows.column_names, name, where, self._root)
        return list(rows.with_format(None)[name][:])

    def _read_labels(self, rows: Any) -> tuple[NDArray[Any], list[str]]:
        """Numbers, and the names of the classes: those that the set knows, or the text."""
        column = rows.features[self._label]
        feature = getattr(column, "feature", column)  # of a list
        names = list(getattr(feature, "names", None) or ())
        kind = str(getattr(feature, "dtype", ""))
        if not kind.startswith(("int", "uint", "bool", "float", "string", "large_string")):
            raise DataError(
                f"{self.where}: the column {self._label!r} of labels holds {column}; expected "
                f"numbers, names or class labels, or lists of these. Name another in "
                f"config.DATA.{self._split}.LABEL_COLUMN."
            )
        if feature is column:
            labels = np.asarray(rows.with_format("numpy")[self._label][:])
            if labels.dtype.kind in "iub":  # a gap makes numbers floats
                return labels, names
        given = ClassNumbers(self._separator)
        try:
            for label in rows.with_format(None)[self._label][:]:
                given.add(label)
            return given.numbered(names)
        except LabelError as error:
            raise DataError(f"{self.where}: the column {self._label!r}: {error}") from error

    def path(self, index: int) -> str:
        return f"row {index} of {self._root}"

    def files_of(self, rows: NDArray[np.int64]) -> list[str] | None:
        parquet = _parquet_of(self._root, self._split, self.where)
        stored = parquet or [each["filename"] for each in self._rows.cache_files]
        return [*map(str, stored), *self._outside()] if stored else None

    def _outside(self) -> list[str]:
        """The files of images of which the rows have the path alone."""
        from pyarrow import compute

        images = self._rows.data.column(self._image)
        inside, path = (compute.struct_field(images, each) for each in ("bytes", "path"))
        outside = compute.and_(compute.is_null(inside), compute.is_valid(path))
        found: list[str] = path.filter(outside).to_pylist()
        return found

    def _label_column(self, rows: Any, wanted: str) -> str:
        if wanted:
            return self._checked(rows, wanted, "LABEL_COLUMN")
        found = [n for n, each in rows.features.items() if isinstance(each, datasets.ClassLabel)]
        usual = ["label"] if "label" in rows.column_names else []
        return str(found[0]) if len(found) == 1 else next(iter(usual), "")

    def _checked(self, rows: Any, wanted: str, key: str) -> str:
        expect_column(rows.column_names, wanted, f"config.DATA.{self._split}.{key}", self._root)
        return wanted


def image_column(features: Any, wanted: str, source: DataSource, split: str, place: Any) -> str:
    """The name of the one column of images, or the one that is wanted."""
    key = f"config.DATA.{split}.IMAGE_COLUMN"
    if wanted:
        expect_column(list(features), wanted, key, place)
        return wanted
    found = [name for name, each in features.items() if _holds_images(each)]
    if len(found) != 1:
        raise DataError(
            f"{source.where}: {len(found) or 'none'} of its columns hold images. Name one with "
            f"{key}.\n  It has: {listing(features)}"
        )
    return str(found[0])


def _holds_images(feature: Any) -> bool:
    """In a parquet file of another program, images are bytes, or {bytes, path}."""
    kinds = [feature["bytes"]] if isinstance(feature, dict) and "bytes" in feature else [feature]
    return any(
        isinstance(each, datasets.Image) or str(getattr(each, "dtype", "")).endswith("binary")
        for each in kinds
    )


def _load(root: Path, split: str, where: str) -> Any:
    if datasets is None:
        raise DataError(f"{where}: to read it install datasets: pip install datasets.")
    if not root.exists():
        raise MissingDataError(f"{where}: {root} is not there: {how_far(root)}")
    if parquet := _parquet_of(root, split, where):
        return _of_parquet(parquet, where)
    try:
        found = datasets.load_from_disk(str(root))
    except (FileNotFoundError, ValueError) as error:
        raise DataError(
            f"{where}: {root} is neither a dataset that save_to_disk wrote, nor does it hold "
            f"parquet files: {error}"
        ) from error
    # The state that save_to_disk wrote has the format that set_format chose.
    found = found.with_format(None)
    if not isinstance(found, datasets.DatasetDict):
        return found
    names = [name for name in SPLITS[split] if name in found]
    if not names:
        raise DataError(
            f"{where}: {root} has no split for {split} ({', '.join(SPLITS[split])}). It has "
            f"{listing(found)}. Give the folder of one."
        )
    return found[names[0]]


def _parquet_of(root: Path, split: str, where: str) -> list[Path]:
    found = _parquet_files(root)
    return _of_split(found, root, split, where) if found and root.is_dir() else found


def _parquet_files(root: Path) -> list[Path]:
    if root.suffix.lower() == ".parquet" and root.is_file():
        return [root]
    found = (each for each in root.rglob("*") if each.suffix.lower() == ".parquet")
    below = ((each, each.relative_to(root).parts) for each in found)
    return sorted(each for each, parts in below if not any(part[0] == "." for part in parts))


def _of_split(files: Sequence[Path], root: Path, split: str, where: str) -> list[Path]:
    if found := of_split(files, root, split, where):
        return found
    raise DataError(
        f"{where}: no parquet file in {root} is of a split for {split} "
        f"({', '.join(SPLITS[split])}). It has: "
        f"{listing(str(each.relative_to(root)) for each in files)}. Give the path of a file."
    )


def _of_parquet(files: Sequence[Path], where: str) -> Any:
    log.info("%s: `datasets` copies %d parquet files into its cache, once", where, len(files))
    try:
        with quiet():
            return datasets.Dataset.from_parquet([str(each) for each in files])
    except Exception as error:  # of pyarrow and of `datasets`, for a file that is no parquet
        raise DataError(f"{where}: {files[0]} and the files like it: {error}") from error


@contextmanager
def quiet() -> Iterator[None]:
    """Each rank would show a bar."""
    shown = not datasets.utils.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if shown:
            datasets.enable_progress_bars()
