"""`csv_filelist`: a table of images, .csv, .tsv or .parquet, with a column of paths; or a list,
.txt, with a path in each line.

The first line of a .csv or .tsv names the columns. IMAGE_COLUMN and LABEL_COLUMN say which are
meant; without them a column of a usual name is taken. Labels are numbers (3, or 3.0), or names,
which are numbered in their order; lists of them (.parquet), or text with LABEL_SEPARATOR between.
With LABEL_COLUMNS there is a column for each class (class_columns.py).
"""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sslengine.data.loading.progress import Progress
from sslengine.data.manifest.index_cache import Found, stamp
from sslengine.data.manifest.shared_paths import by_folder, path_arrays
from sslengine.data.options import SplitOptions, TableOptions, own
from sslengine.data.sources.class_columns import ClassColumns
from sslengine.data.sources.class_numbers import ClassNumbers, LabelError, all_known, count_classes
from sslengine.data.sources.disk import ListedFiles
from sslengine.errors import DataError, MissingDataError, listing, nearest
from sslengine.registry import register_data_source

IMAGE_NAMES = ("path", "image", "image_path", "file", "filename", "file_name", "filepath")
LABEL_NAMES = ("label", "class", "target", "category")

# The names of the columns, and the rows of those that are asked for by number.
Table = tuple[Sequence[str], Callable[[Sequence[int]], Iterator[Sequence[Any]]]]


@register_data_source("csv_filelist")
class TableSource(ListedFiles):
    """A row is an image. A table without a column of labels has none."""

    def __init__(self, options: SplitOptions, split: str, position: int = 0) -> None:
        columns = own(options, TableOptions)
        self._wanted = columns.IMAGE_COLUMN, columns.LABEL_COLUMN
        self._classes = tuple(columns.LABEL_COLUMNS)
        self._separator = columns.LABEL_SEPARATOR
        self._split = split
        super().__init__(options, split, position)
        self._labels = self._index["labels"]
        if not len(self):
            raise DataError(f"{self.where}: the table {self._list} has no row.")
        self.class_names = [os.fsdecode(name) for name in self._index.strings("classes")]
        self.num_classes = count_classes(self._labels.array)

    def labels(self) -> NDArray[np.generic]:
        if self._classes:
            return self._labels.array
        return all_known(
            self._labels.array,
            lambda missing: (
                f"{self.where}: labels are asked for, and {missing.size} of {len(self)} rows of "
                f"{self._list} have none (empty, nan, None or -1), the first is row "
                f"{int(missing[0]) + 1}, {self.path(int(missing[0]))}. Name their column in "
                f"config.DATA.{self._split}.LABEL_COLUMN, leave such rows out, or train without "
                f"LABEL_SOURCES."
            ),
        )

    def column(self, name: str, where: str) -> list[Any]:
        names, rows = open_table(self._list)
        expect_column(names, name, where, self._list)
        return [value for (value,) in rows([list(names).index(name)])]

    def _kind(self) -> str:
        return f"table, columns {self._wanted}, {self._classes}, {self._separator!r}"

    def _find(self) -> Found:
        marked = stamp(self._list)
        classes = ClassColumns(self._classes) if self._classes else ClassNumbers(self._separator)
        try:
            names, rows = open_table(self._list)
            columns = self._columns(names)
            arrays = path_arrays(by_folder(self._paths_of(rows(columns), classes)))
        except LabelError as error:
            raise DataError(f"{self.where}: {self._list}: {error}") from error
        except UnicodeDecodeError as error:
            raise DataError(f"{self.where}: {self._list} is not text in UTF-8: {error}") from error
        return Found({**arrays, **classes.arrays()}, [marked], len(arrays["kind_of"]))

    def _columns(self, names: Sequence[str]) -> list[int]:
        image = self._column(names, self._wanted[0], IMAGE_NAMES, "IMAGE_COLUMN")
        if image is None:
            raise DataError(
                f"{self.where}: which column of {self._list} holds the paths? Name it with "
                f"config.DATA.{self._split}.IMAGE_COLUMN.\n  It has: {listing(names)}"
            )
        if self._classes:
            found = [self._column(names, each, (), "LABEL_COLUMNS") for each in self._classes]
            return [image, *(each for each in found if each is not None)]
        label = self._column(names, self._wanted[1], LABEL_NAMES, "LABEL_COLUMN")
        return [image] if label is None else [image, label]

    def _column(
        self, names: Sequence[str], wanted: str, usual: Sequence[str], key: str
    ) -> int | None:
        if wanted:
            expect_column(names, wanted, f"config.DATA.{self._split}.{key}", self._list)
        lowered = [name.strip().lower() for name in names]
        found = [lowered.index(name) for name in usual if name in lowered]
        return names.index(wanted) if wanted else next(iter(found), None)

    def _paths_of(
        self, rows: Iterable[Sequence[Any]], classes: ClassNumbers | ClassColumns
    ) -> Iterator[bytes]:
        progress = Progress(f"reading {self._list}")
        for number, (path, *labels) in enumerate(rows):
            if not path:
                raise DataError(f"{self.where}: row {number + 1} of {self._list} has no path.")
            if not isinstance(path, str):
                raise DataError(
                    f"{self.where}: row {number + 1} of {self._list} holds a {type(path).__name__} "
                    f"where a path is expected. Name the column of paths with "
                    f"config.DATA.{self._split}.IMAGE_COLUMN; if the images themselves are in the "
                    f"file, set DATA_SOURCES to huggingface_dataset."
                )
            if isinstance(classes, ClassColumns):
                classes.add(labels)
            else:
                classes.add(labels[0] if labels else None)
            progress.tell(number, "rows")
            yield os.fsencode(path)


def expect_column(names: Sequence[str], wanted: str, where: str, table: Any) -> None:
    if wanted not in names:
        raise MissingDataError(
            f"{where}: {table} has no column {wanted!r}. {nearest(wanted, names)}\n  "
            f"It has: {listing(names)}"
        )


def open_table(file: Path) -> Table:
    if file.suffix.lower() == ".txt":
        return _open_list(file)
    return _open_parquet(file) if file.suffix.lower() == ".parquet" else _open_text(file)


def _open_list(file: Path) -> Table:
    def rows(columns: Sequence[int]) -> Iterator[list[str]]:
        with file.open(encoding="utf-8-sig") as stream:
            yield from ([path] for line in stream if (path := line.rstrip("\r\n")))

    return IMAGE_NAMES[:1], rows


def _open_text(file: Path) -> Table:
    with file.open(encoding="utf-8-sig") as stream:
        delimiter = delimiter_in(file, stream.readline())

    def lines() -> Iterator[list[str]]:
        with file.open(newline="", encoding="utf-8-sig") as stream:
            yield from csv.reader(stream, delimiter=delimiter)

    def rows(columns: Sequence[int]) -> Iterator[list[str]]:
        last, width = max(columns), 0
        for number, line in enumerate(lines()):
            width = width or len(line)
            if not number or not line:
                continue
            if any(map(str.strip, line[width:])):
                raise DataError(
                    f"{file}: line {number + 1} has {len(line)} columns, more than the first line. "
                    f"Put a value with {delimiter!r} in it in quotes."
                )
            if len(line) <= last:
                raise DataError(
                    f"{file}: line {number + 1} has {len(line)} columns, fewer than the first line."
                )
            yield [unescape_formula(line[column]) for column in columns]

    return next(lines(), []), rows


# What a spreadsheet takes for a formula. A number stays one.
_FORMULA = re.compile(r"'*(?![+-]?[\d.]+(e[+-]?\d+)?$)[=+\-@\t\r\n]")


def escape_formula(cell: Any) -> Any:
    """Put an apostrophe before what a spreadsheet would run: the name may be a stranger's."""
    return f"'{cell}" if isinstance(cell, str) and _FORMULA.match(cell) else cell


def unescape_formula(cell: str) -> str:
    """Undo `escape_formula`."""
    return cell[1:] if cell.startswith("'") and _FORMULA.match(cell) else cell


def delimiter_in(file: Path, header: str) -> str:
    """Spreadsheets write `;` where a comma is the sign of decimals."""
    if file.suffix.lower() == ".tsv":
        return "\t"
    return ";" if ";" in header and "," not in header else ","


def _open_parquet(file: Path) -> Table:
    try:
        from pyarrow import ArrowInvalid, parquet
    except ImportError as error:
        raise DataError(f"To read {file} install pyarrow: pip install pyarrow.") from error
    try:
        table: Any = parquet.ParquetFile(file)
    except ArrowInvalid as error:
        raise DataError(f"{file} is not a parquet file: {error}") from error
    names = table.schema_arrow.names

    def rows(columns: Sequence[int]) -> Iterator[Sequence[Any]]:
        wanted = [names[column] for column in columns]
        for batch in table.iter_batches(columns=wanted):
            yield from zip(*(batch.column(name).to_pylist() for name in wanted), strict=True)

    return names, rows
