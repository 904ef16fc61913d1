"""Lists of images: tables, .csv, .tsv or .parquet, with named columns; .txt with a path in a line;
arrays of paths or labels in a .npy file.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sslengine.data.decode.files import expect_file
from sslengine.errors import DataError, MissingDataError, listing, nearest

# Of columns, where none is named.
IMAGE_NAMES = ("path", "image", "image_path", "file", "filename", "file_name", "filepath")
LABEL_NAMES = ("label", "class", "target", "category")

# The names of the columns, and the rows of those that are asked for by number.
Table = tuple[Sequence[str], Callable[[Sequence[int]], Iterator[Sequence[Any]]]]

# What a spreadsheet takes for a formula. A number stays one.
_FORMULA = re.compile(r"'*(?![+-]?[\d.]+(e[+-]?\d+)?$)[=+\-@\t\r\n]")


def expect_column(names: Sequence[str], wanted: str, where: str, table: Any) -> None:
    if wanted not in names:
        raise MissingDataError(
            f"{where}: {table} has no column {wanted!r}. {nearest(wanted, names)}\n  "
            f"It has: {listing(names)}"
        )


def open_table(file: Path) -> Table:
    openers = {".txt": _open_list, ".parquet": _open_parquet}
    return openers.get(file.suffix.lower(), open_text)(file)


def _open_list(file: Path) -> Table:
    def read_rows(columns: Sequence[int]) -> Iterator[list[str]]:
        with file.open(encoding="utf-8-sig") as stream:
            yield from ([path] for line in stream if (path := line.rstrip("\r\n")))

    return IMAGE_NAMES[:1], read_rows


def open_text(file: Path, errors: str = "strict") -> Table:
    """Open a .csv or .tsv; errors: for bytes that are not UTF-8, as of `open`."""
    with file.open(encoding="utf-8-sig", errors=errors) as stream:
        delimiter = find_delimiter(file, stream.readline())

    def read_lines() -> Iterator[list[str]]:
        with file.open(newline="", encoding="utf-8-sig", errors=errors) as stream:
            yield from csv.reader(stream, delimiter=delimiter)

    def read_rows(columns: Sequence[int]) -> Iterator[list[str]]:
        last, width = max(columns), 0
        for number, line in enumerate(read_lines()):
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

    return next(read_lines(), []), read_rows


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

    def read_rows(columns: Sequence[int]) -> Iterator[Sequence[Any]]:
        wanted = [names[column] for column in columns]
        for batch in table.iter_batches(columns=wanted):
            yield from zip(*(batch.column(name).to_pylist() for name in wanted), strict=True)

    return names, read_rows


def find_delimiter(file: Path, header: str) -> str:
    """Return what separates columns. Spreadsheets write `;` where a comma is the decimal sign."""
    if file.suffix.lower() == ".tsv":
        return "\t"
    return ";" if ";" in header and "," not in header else ","


def escape_formula(cell: Any) -> Any:
    """Put an apostrophe before what a spreadsheet would run: the name may be a stranger's."""
    return f"'{cell}" if isinstance(cell, str) and _FORMULA.match(cell) else cell


def unescape_formula(cell: str) -> str:
    """Undo `escape_formula`."""
    return cell[1:] if cell.startswith("'") and _FORMULA.match(cell) else cell


def load_array(file: Path, where: str, mmap: bool = False) -> NDArray[Any]:
    """Load a .npy file of paths or labels. where: its key."""
    expect_file(file, where)
    try:
        array = np.load(file, mmap_mode="r" if mmap else None, allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise DataError(
            f"{where}: {file} is not a .npy file of plain values ({error}). "
            f"Save it again with np.save(path, np.array(values)): arrays of Python objects "
            f"are not read, because reading them can run code."
        ) from error
    if not isinstance(array, np.ndarray):
        raise DataError(f"{where}: {file} must hold one array, and is a .npz archive.")
    return array
