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
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

try:
    import datasets
except ImportError:
    datasets = None

from sslengine.data.decode.files import expect_there, read_file
from sslengine.data.manifest.classes import ClassNumbers, LabelError, count_classes
from sslengine.data.manifest.index import ReadLater
from sslengine.data.manifest.paths import SPLITS, choose_split, data_path
from sslengine.data.manifest.tables import expect_column
from sslengine.data.options import ColumnOptions, SplitOptions, own
from sslengine.data.sources.base import EncodedSource
from sslengine.errors import DataError, listing
from sslengine.registry import register_data_source

log = logging.getLogger("sslengine")


@register_data_source("huggingface_dataset")
class HuggingFaceSource(EncodedSource):
    needs_path = True

    def __init__(self, options: SplitOptions, split: str, position: int = 0) -> None:
        super().__init__(options, split, position)
        self._split, self._key = split, f"config.DATA.{split}"
        self._root, self.where = data_path(options, split, position)
        rows = self._load()
        columns = own(options, ColumnOptions)
        place = self._key, self._root
        self._image = find_image_column(rows.features, columns.IMAGE_COLUMN, *place)
        self._label = find_label_column(rows.features, columns.LABEL_COLUMN, *place)
        self._labels: NDArray[Any] | None = None
        if self._label:
            self._labels, self.class_names = self._read_labels(rows, columns.LABEL_SEPARATOR)
            self.num_classes = len(self.class_names) or count_classes(self._labels)
        # Workers get the names of its files, which `datasets` maps into memory.
        self._rows = keep_encoded(rows.select_columns([self._image]), self._image)

    def __len__(self) -> int:
        return len(self._rows)

    def read(self, index: int) -> bytes:
        content: bytes | None = file_bytes(self._rows[index][self._image])
        if not content:
            raise ValueError("the row has no image")
        return content

    def labels(self) -> NDArray[np.generic]:
        if self._labels is None:
            raise DataError(
                f"{self.where}: labels are asked for, and no column is one of class labels or "
                f"called label. Name it in {self._key}.LABEL_COLUMN."
            )
        return self.expect_labels(
            self._labels,
            f"have none in the column {self._label!r} (nan, None or -1). Leave such rows out",
        )

    def column(self, name: str, where: str) -> Sequence[Any]:
        rows = self._load()
        expect_column(rows.column_names, name, where, self._root)
        if holds_images(rows.features[name]):
            stored = keep_encoded(rows.select_columns([name]), name)
            return ReadLater(partial(_read_image, stored, name), len(stored))
        return list(rows.with_format(None)[name][:])

    def _read_labels(self, rows: Any, separator: str) -> tuple[NDArray[Any], list[str]]:
        """Read numbers, and the names of the classes: those that the set knows, or the text."""
        column = rows.features[self._label]
        feature = getattr(column, "feature", column)  # of a list
        names = list(getattr(feature, "names", None) or ())
        kind = str(getattr(feature, "dtype", ""))
        if not kind.startswith(("int", "uint", "bool", "float", "string", "large_string")):
            raise DataError(
                f"{self.where}: the column {self._label!r} of labels holds {column}; expected "
                f"numbers, names or class labels, or lists of these. Name another in "
                f"{self._key}.LABEL_COLUMN."
            )
        if feature is column:
            labels = np.asarray(rows.with_format("numpy")[self._label][:])
            if labels.dtype.kind in "iub":  # a gap makes numbers floats
                return labels, names
        given = ClassNumbers(separator)
        try:
            for label in rows.with_format(None)[self._label][:]:
                given.add(label)
            return given.numbered(names)
        except LabelError as error:
            raise DataError(f"{self.where}: the column {self._label!r}: {error}") from error

    def path(self, index: int) -> str:
        return f"row {index} of {self._root}"

    def files_of(self, rows: NDArray[np.int64]) -> list[str] | None:
        """Name its own files, and those of images of which the rows have the path alone."""
        from pyarrow import compute

        stored = self._parquet() or [each["filename"] for each in self._rows.cache_files]
        images = self._rows.data.column(self._image)
        inside, path = (compute.struct_field(images, each) for each in ("bytes", "path"))
        outside = compute.and_(compute.is_null(inside), compute.is_valid(path))
        return [*map(str, stored), *path.filter(outside).to_pylist()] if stored else None

    def _load(self) -> Any:
        if datasets is None:
            raise DataError(f"{self.where}: to read it install datasets: pip install datasets.")
        expect_there(self._root, self.where)
        if parquet := self._parquet():
            log.info("%s: `datasets` copies %d parquet files into its cache, once", self.where,
                     len(parquet))  # fmt: skip
            try:
                with hide_bars():
                    return datasets.Dataset.from_parquet([str(each) for each in parquet])
            except (
                Exception
            ) as error:  # of pyarrow and of `datasets`, for a file that is no parquet
                told = f"{self.where}: {parquet[0]} and the files like it: {error}"
                raise DataError(told) from error
        try:
            found = datasets.load_from_disk(str(self._root))
        except (FileNotFoundError, ValueError) as error:
            raise DataError(
                f"{self.where}: {self._root} is neither a dataset that save_to_disk wrote, nor "
                f"does it hold parquet files: {error}"
            ) from error
        # The state that save_to_disk wrote has the format that set_format chose.
        found = found.with_format(None)
        if not isinstance(found, datasets.DatasetDict):
            return found
        names = [name for name in SPLITS[self._split] if name in found]
        if not names:
            raise DataError(
                f"{self.where}: {self._root} has no split for {self._split} "
                f"({', '.join(SPLITS[self._split])}). It has {listing(found)}. Give the folder of "
                f"one."
            )
        return found[names[0]]

    def _parquet(self) -> list[Path]:
        """Find the parquet files of the split."""
        root = self._root
        if root.suffix.lower() == ".parquet" and root.is_file():
            return [root]
        files = sorted(
            each for each in root.rglob("*")
            if each.suffix.lower() == ".parquet"
            and not any(part[0] == "." for part in each.relative_to(root).parts)
        )  # fmt: skip
        found = choose_split(files, root, self._split, self.where) if files else []
        if files and not found:
            raise DataError(
                f"{self.where}: no parquet file in {root} is of a split for {self._split} "
                f"({', '.join(SPLITS[self._split])}). It has: "
                f"{listing(str(each.relative_to(root)) for each in files)}. Name a file."
            )
        return found


def find_image_column(features: Any, wanted: str, key: str, place: Any) -> str:
    """Return the name of the one column of images, or the one that is wanted.

    key: of the split's options. place: where the dataset is.
    """
    if wanted:
        expect_column(list(features), wanted, f"{key}.IMAGE_COLUMN", place)
        return wanted
    found = [name for name, each in features.items() if holds_images(each)]
    if len(found) != 1:
        raise DataError(
            f"{key}.IMAGE_COLUMN: {len(found) or 'none'} of the columns of {place} hold images. "
            f"Name one.\n  It has: {listing(features)}"
        )
    return str(found[0])


def find_label_column(features: Any, wanted: str, key: str, place: Any) -> str:
    """Return the name of the wanted column, of the one of class labels, or `label`; "": none."""
    if wanted:
        expect_column(list(features), wanted, f"{key}.LABEL_COLUMN", place)
        return wanted
    found = [name for name, each in features.items() if isinstance(each, datasets.ClassLabel)]
    return str(found[0]) if len(found) == 1 else "label" if "label" in features else ""


def keep_encoded(rows: Any, *columns: str) -> Any:
    """Return rows whose images in these columns are not decoded."""
    for name in columns:
        rows = rows.cast_column(name, datasets.Image(decode=False))
    return rows


def _read_image(rows: Any, name: str, index: int) -> Any:
    return file_bytes(rows[index][name])


def file_bytes(value: Any) -> Any:
    """Return the bytes of an image that is not decoded, None if it has none; all else unchanged."""
    if not isinstance(value, dict) or {*value} != {"bytes", "path"}:
        return value
    return value["bytes"] or (read_file(value["path"]) if value["path"] else None)


def holds_images(feature: Any) -> bool:
    """Tell a column of images. In a parquet file of another program they are bytes, or
    {bytes, path}."""
    kind = feature["bytes"] if isinstance(feature, dict) and "bytes" in feature else feature
    is_binary = str(getattr(kind, "dtype", "")).endswith("binary")
    return isinstance(kind, datasets.Image) or is_binary


@contextmanager
def hide_bars() -> Iterator[None]:
    """Hide the bars of `datasets`: each rank would show one."""
    shown = not datasets.utils.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if shown:
            datasets.enable_progress_bars()
