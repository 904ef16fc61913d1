"""The classes of a run: TRAIN's, in whose numbers the labels of every other split are.

Each source numbers its labels by itself: folders, names in a table or a file in order of name;
labels that are numbers stay what they are. `translate` gives those of another split the numbers
that TRAIN has, by name; where one split has numbers and the other the names of all classes, none of
them a number, a name has the number of its place. A class that TRAIN lacks is an error; TRAIN may
have more.

Where samples have several classes, a label is a row of indicators with a column for each class:
1 where the sample shows it, 0 where not, -1 where unknown. A label that is a list, or text with
LABEL_SEPARATOR in it, says several classes. Where one sample has such a label all have.
"""

from __future__ import annotations

import os
import re
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sslengine.data.manifest.index import make_string_arrays
from sslengine.errors import DataError, listing, nearest, readable

Column = NDArray[Any]

# Of a sample: it has no label, which losses leave out. Of an indicator: it is not known.
NO_CLASS = -1
# What a table has where there is no label: a gap, pandas' NaN, VISSL's number for it.
_MISSING = re.compile(r"|nan|-1(\.0*)?", re.IGNORECASE)
_NUMBER = re.compile(r"-?\d+(\.\d*)?")
_WHOLE = re.compile(r"(-?\d+)(\.0*)?")
_CLASS_NUMBER = re.compile(r"\d{1,9}(\.0*)?")
# Cells of LABEL_COLUMNS; in CheXpert -1 is uncertain. Losses and metrics ignore what is not known.
_INDICATORS = {
    **dict.fromkeys(("1", "1.0", "true"), 1),
    **dict.fromkeys(("0", "0.0", "false"), 0),
    **dict.fromkeys(("", "nan", "none", "-1", "-1.0"), NO_CLASS),
}


class LabelError(DataError):
    """Labels that are no classes; whoever reads them says where they are."""


@dataclass(frozen=True)
class LabelColumn:
    """What a source, or a file, has: a number for each sample, or a row of class indicators."""

    column: Column
    # Of the classes, by number; (): labels are class numbers already.
    names: tuple[str, ...] = ()
    # Where they come from, for messages.
    where: str = ""
    # Of rows of indicators: as a file has them, not made of lists of classes.
    indicators: bool = False

    @property
    def width(self) -> int:
        """Count the columns of indicators; 0: a label is one class, or a row of probabilities."""
        rows = self.column
        if rows.ndim != 2 or (rows.dtype.kind == "f" and not np.isin(rows, (-1, 0, 1)).all()):
            return 0
        return int(rows.shape[1])

    @property
    def used(self) -> Column:
        """Find the numbers of the classes that samples have."""
        if self.column.ndim == 1:
            return np.unique(self.column)
        return np.flatnonzero((self.column > 0).any(axis=0))

    def value(self, number: int) -> str:
        return _plain_name(self.names[number]) if self.names else str(number)

    def first_of(self, number: int) -> int:
        """Find the first sample that has the class."""
        several = self.column.ndim == 2
        has = self.column[:, number] > 0 if several else self.column == number
        return int(np.flatnonzero(has)[0])


@dataclass(frozen=True)
class Classes:
    """Those of one label column of TRAIN: by name, or the numbers that there are."""

    names: tuple[str, ...] = ()
    numbers: frozenset[int] = field(default_factory=frozenset)
    where: str = ""
    # Of rows of indicators.
    width: int = 0

    @classmethod
    def collect(cls, labels: LabelColumn) -> Classes:
        # In rows of indicators a column is a class, whether a sample has it or not.
        has_columns = labels.indicators or (labels.column.ndim == 2 and not labels.width)
        numbered = not (labels.names or has_columns)
        numbers = frozenset(int(each) for each in labels.used if each >= 0) if numbered else ()
        return cls(labels.names, frozenset(numbers), labels.where, labels.width)

    @property
    def by_value(self) -> dict[str, int]:
        """Map each class's name to its number; a number's name is its digits."""
        if self.names:
            return {_plain_name(name): number for number, name in enumerate(self.names)}
        return {str(number): number for number in self.numbers}


def translate(classes: Classes, labels: LabelColumn, name_sample: Callable[[int], str]) -> Column:
    """Return the labels of another split in TRAIN's numbers."""
    column = labels.column
    if column.ndim == 2 and not labels.width:
        return column  # probabilities
    _check_form(classes, labels)
    if not (classes.names or classes.numbers) or (classes.names and labels.names == classes.names):
        return column
    used = labels.used
    values = [labels.value(int(number)) for number in used]
    named = bool(labels.names) and not _has_number(labels.names)
    numbered = not (classes.names or classes.width)
    if named and numbered and max(classes.numbers, default=0) < len(labels.names):
        # TRAIN's labels are numbers, and here are the folders of all classes, in that order: so a
        # list of a part of ImageNet, with numbers, is tested on its folders.
        values = [str(number) for number in used.tolist()]
    known = classes.by_value
    if classes.names and not labels.names and not _has_number(classes.names):
        known = {str(number): number for number in range(len(classes.names))}
    unknown = [each for each in values if each not in known and each != str(NO_CLASS)]
    if unknown:
        first = name_sample(labels.first_of(used[values.index(unknown[0])]))
        known_names = classes.names or sorted(classes.numbers)
        hint = nearest(unknown[0], map(str, known_names))
        raise DataError(
            f"{labels.where}: {len(unknown)} of its classes are not among those of TRAIN "
            f"({classes.where}): {listing(unknown, 8)}. {hint}".rstrip()
            + f"\n  The first sample of class {unknown[0]!r} is {first}."
            + f"\n  TRAIN has: {listing(map(str, known_names), 12)}."
        )
    if classes.width:
        return _move_columns(labels, known, classes.width)
    table = np.array([known.get(value, NO_CLASS) for value in values], np.int64)
    moved: Column = table.astype(column.dtype)[np.searchsorted(used, column)]
    return moved


def _check_form(classes: Classes, labels: LabelColumn) -> None:
    if not (classes.names or classes.numbers or classes.width):
        return
    several = bool(labels.width), bool(classes.width)
    if several[0] != several[1] or (labels.indicators and labels.width != classes.width):
        forms = (
            f"a row of indicators of {width} classes" if width else "one class"
            for width in (labels.width, classes.width)
        )  # fmt: skip
        raise DataError(
            f"{labels.where}: a label is {next(forms)}, and in TRAIN ({classes.where}) "
            f"{next(forms)}. Give both one form, and a column for each class in one order."
        )


def _move_columns(labels: LabelColumn, known: Mapping[str, int], width: int) -> Column:
    """Put the columns in TRAIN's order. A class of TRAIN without a column is unknown in indicators,
    and 0 where labels are lists of classes. A row of unknown indicators stays unknown."""
    column = labels.column
    moved = np.full((len(column), width), NO_CLASS if labels.indicators else 0, column.dtype)
    for number in range(column.shape[1]):
        target = known.get(labels.value(number))
        if target is not None:
            moved[:, target] = column[:, number]
    moved[(column < 0).all(axis=1)] = NO_CLASS
    return moved


def _plain_name(name: str) -> str:
    """Write `007`, `7.0` and `7` in one way."""
    whole = _WHOLE.fullmatch(name)
    return str(int(whole[1])) if whole else name


def _has_number(names: Iterable[str]) -> bool:
    return any(map(_NUMBER.fullmatch, names))


def find_unlabelled(labels: Column) -> NDArray[np.int64]:
    """Find the samples that have no label."""
    has_none = labels == NO_CLASS
    if labels.ndim == 2:
        has_none = has_none.all(axis=1) & bool(labels.shape[1])
    return np.flatnonzero(has_none)


def read_number(label: Any) -> int | None:
    """Read the number of a class, 7 or `7.0`; None: it is none."""
    text = str(label).strip()
    return int(float(text)) if _CLASS_NUMBER.fullmatch(text) else None


def count_classes(labels: Column) -> int:
    """Count the classes of a column; 0: there are no labels."""
    return labels.shape[1] if labels.ndim == 2 else max(0, int(labels.max(initial=-1)) + 1)


class ClassNumbers:
    """Take labels one by one, and hold 4 bytes of each, or of each class of a list 4.

    Where all are whole numbers (`7`, `7.0`) they are the classes. Otherwise the classes are the
    different labels, in order of size if they are numbers and of name if not. A sample without a
    label has None, nothing, `nan` or -1. A list may be empty: the sample shows no class.
    """

    def __init__(self, separator: str = "") -> None:
        self._separator = separator
        self._known: dict[str, int] = {}
        self._of = array("i")  # by number of arrival
        # How many classes each sample has; None as long as each has one.
        self._counts: array[int] | None = array("i") if separator else None

    def add(self, label: Any) -> None:
        """Take the next label; None: the sample has none."""
        if self._separator and isinstance(label, str):
            label = [each for each in map(str.strip, label.split(self._separator)) if each]
        if isinstance(label, (list, tuple, np.ndarray)):
            self._add_several(label)
            return
        self._of.append(self._number(label))
        if self._counts is not None:
            self._counts.append(1)

    def _add_several(self, labels: Iterable[Any]) -> None:
        if self._counts is None:
            self._counts = array("i", [1]) * len(self._of)
        numbers = [self._number(each) for each in labels]
        if len(set(numbers)) < len(numbers) and all(each in (0, 1, "0", "1") for each in labels):
            raise LabelError(
                f"sample {len(self._counts) + 1} has the label {readable(str(labels))[:80]}; a "
                f"list names classes. Indicators are read from a .npy file: LABEL_SOURCES "
                f"[disk_filelist] with LABEL_PATHS."
            )
        self._of.extend(numbers)
        self._counts.append(len(numbers))

    def _number(self, label: Any) -> int:
        if label is None:
            return NO_CLASS
        label = os.fsdecode(label) if isinstance(label, bytes) else label
        text = (label if isinstance(label, str) else str(label)).strip()
        if _MISSING.fullmatch(text):
            return NO_CLASS
        return self._known.setdefault(text, len(self._known))

    def arrays(self) -> dict[str, Column]:
        """Return `labels`, and the names of the `classes` if they are not numbers."""
        labels, classes = self.numbered()
        return {"labels": labels, **make_string_arrays("classes", map(os.fsencode, classes))}

    def numbered(self, given: Iterable[str] = ()) -> tuple[Column, list[str]]:
        """Return the labels and the names of their classes.

        given: what the numbers that there are stand for, if that is known.
        """
        names = list(self._known)
        classes: list[str] = []
        if all(map(_CLASS_NUMBER.fullmatch, names)):
            numbers = [int(float(name)) for name in names]
        else:
            classes = sorted(names, key=float if all(map(_NUMBER.fullmatch, names)) else None)
            place = {name: number for number, name in enumerate(classes)}
            numbers = [place[name] for name in names]
        table = np.array([*numbers, NO_CLASS], np.int32)  # at -1 is the last
        labels, classes = table[np.frombuffer(self._of, np.int32)], list(given) or classes
        if self._counts is None:
            return labels, classes
        rows = np.repeat(np.arange(len(self._counts)), np.frombuffer(self._counts, np.int32))
        width, known = max(len(classes), count_classes(labels)), labels != NO_CLASS
        matrix = np.zeros((len(self._counts), width), np.int8)
        matrix[rows[known], labels[known]] = 1
        matrix[rows[~known]] = NO_CLASS
        return matrix, classes


def number_names(
    labels: Iterable[str | bytes | None], where: str
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Return the number of each label, and the names of the classes if they are not numbers."""
    numbers = ClassNumbers()
    for label in labels:
        numbers.add(label)
    found, classes = numbers.numbered()
    if (missing := find_unlabelled(found)).size:
        raise DataError(
            f"{where}: {missing.size} of {len(found)} labels are missing (empty, nan, None or -1), "
            f"the first in row {missing[0] + 1}. Leave such samples out, or label them."
        )
    return found.astype(np.int64), tuple(classes)


class ClassColumns:
    """Collect the indicators of each row; the classes are the columns, in the order of the key."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = tuple(names)
        self._indicators = array("b")

    def add(self, cells: Sequence[Any]) -> None:
        for name, cell in zip(self._names, cells, strict=True):
            indicator = _INDICATORS.get(str(cell).strip().lower())
            if indicator is None:
                row = len(self._indicators) // len(self._names) + 1
                raise LabelError(
                    f"row {row}, column {name!r}: expected 1, 0, or -1 or nothing for unknown; got "
                    f"{readable(str(cell))[:80]!r}."
                )
            self._indicators.append(indicator)

    def arrays(self) -> dict[str, Column]:
        """Return `labels`, images x classes, and the names of the `classes`."""
        labels = np.frombuffer(self._indicators, np.int8).reshape(-1, len(self._names))
        return {"labels": labels, **make_string_arrays("classes", map(os.fsencode, self._names))}
