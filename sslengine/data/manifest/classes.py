"""The classes of a run: TRAIN's, in whose numbers the labels of every other split are.

Each source numbers its labels by itself: folders, names in a table or a file in order of name;
labels that are numbers stay what they are. `in_numbers_of` gives those of another split the
numbers that TRAIN has, by name; where one split has numbers and the other the names of all classes,
none of them a number, a name has the number of its place. A class that TRAIN lacks is an error;
TRAIN may have more.

Where samples have several classes, a label is a row of indicators with a column for each class:
1 where the sample shows it, 0 where not, -1 where unknown.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sslengine.errors import DataError, listing, nearest

Column = NDArray[Any]


@dataclass(frozen=True)
class Labels:
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
        """Columns of rows of indicators; 0: a label is one class, or a row of probabilities."""
        rows = self.column
        if rows.ndim != 2 or (rows.dtype.kind == "f" and not np.isin(rows, (-1, 0, 1)).all()):
            return 0
        return int(rows.shape[1])


@dataclass(frozen=True)
class Classes:
    """Those of one label column of TRAIN: by name, or the numbers that there are."""

    names: tuple[str, ...] = ()
    numbers: frozenset[int] = field(default_factory=frozenset)
    where: str = ""
    # Of rows of indicators.
    width: int = 0

    @classmethod
    def of(cls, labels: Labels) -> Classes:
        numbers = frozenset() if labels.names else _numbers_in(labels)
        return cls(labels.names, numbers, labels.where, labels.width)

    @property
    def by_value(self) -> dict[str, int]:
        """The number of each class by its name; a number's name is its digits."""
        if self.names:
            return {_plain(name): number for number, name in enumerate(self.names)}
        return {str(number): number for number in self.numbers}


def in_numbers_of(classes: Classes, labels: Labels, sample: Callable[[int], str]) -> Column:
    """The labels of another split. sample: what to call one, for a message."""
    if labels.column.ndim == 2 and not labels.width:
        return labels.column  # probabilities
    _check_form(classes, labels)
    if not (classes.names or classes.numbers):
        return labels.column
    if classes.names and labels.names == classes.names:
        return labels.column
    used = _used(labels)
    values = [_value(labels, int(number)) for number in used]
    if _names_numbers(classes, labels):
        values = [str(number) for number in used.tolist()]
    if classes.names and not labels.names and not _has_number(classes.names):
        known = {str(number): number for number in range(len(classes.names))}
    else:
        known = classes.by_value
    unknown = [value for value in values if value not in known and value != _UNLABELLED]
    if unknown:
        number = used[values.index(unknown[0])]
        first = sample(int(np.flatnonzero(_has(labels, number))[0]))
        raise DataError(_told(classes, labels, unknown, first))
    if classes.width:
        return _columns_moved(labels, known, classes.width)
    table = np.array([known.get(value, -1) for value in values], np.int64)
    moved: Column = table.astype(labels.column.dtype)[np.searchsorted(used, labels.column)]
    return moved


def _names_numbers(classes: Classes, labels: Labels) -> bool:
    """Are TRAIN's labels numbers, and here the folders of all classes, which are in that order?

    So a list of a part of ImageNet, with numbers, is tested on its folders.
    """
    named = bool(labels.names) and not _has_number(labels.names)
    alone = named and not (classes.names or classes.width)
    return alone and max(classes.numbers, default=0) < len(labels.names)


def _check_form(classes: Classes, labels: Labels) -> None:
    known = bool(classes.names or classes.numbers or classes.width)
    if known and bool(labels.width) != bool(classes.width):
        forms = "one class", "several classes (a row of indicators)"
        raise DataError(
            f"{labels.where}: a label is {forms[bool(labels.width)]}, and in TRAIN "
            f"({classes.where}) it is {forms[bool(classes.width)]}."
        )
    if known and labels.indicators and labels.width != classes.width:
        raise DataError(
            f"{labels.where}: rows of indicators have {labels.width} columns, and in TRAIN "
            f"({classes.where}) {classes.width}. Give both a column for each class, in one order."
        )


def _used(labels: Labels) -> Column:
    """The numbers of the classes that samples have."""
    if labels.column.ndim == 1:
        return np.unique(labels.column)
    return np.flatnonzero((labels.column > 0).any(axis=0))


def _has(labels: Labels, number: int) -> Column:
    """Which samples have the class?"""
    of_each = labels.column if labels.column.ndim == 1 else labels.column[:, number]
    return np.asarray(of_each == number if labels.column.ndim == 1 else of_each > 0)


def _columns_moved(labels: Labels, known: Mapping[str, int], width: int) -> Column:
    """The columns in TRAIN's order. A class of TRAIN without a column is unknown in indicators, and
    0 where labels are lists of classes. A row of unknown indicators stays unknown."""
    column = labels.column
    moved = np.full((len(column), width), -1 if labels.indicators else 0, column.dtype)
    for number in range(column.shape[1]):
        target = known.get(_value(labels, number))
        if target is not None:
            moved[:, target] = column[:, number]
    moved[(column < 0).all(axis=1)] = -1
    return moved


# Numbers may say that a sample has no label: the supervised loss leaves it out.
_UNLABELLED = "-1"


def _value(labels: Labels, number: int) -> str:
    return _plain(labels.names[number]) if labels.names else str(number)


_WHOLE = re.compile(r"(-?\d+)(\.0*)?")
_NUMBER = re.compile(r"-?\d+(\.\d*)?")


def _plain(name: str) -> str:
    """`007`, `7.0` and `7` are one number."""
    whole = _WHOLE.fullmatch(name)
    return str(int(whole[1])) if whole else name


def _has_number(names: Iterable[str]) -> bool:
    return any(map(_NUMBER.fullmatch, names))


def _numbers_in(labels: Labels) -> frozenset[int]:
    """Of rows of indicators none: a column is a class, whether a sample has it or not."""
    if labels.indicators or (labels.column.ndim == 2 and not labels.width):
        return frozenset()
    return frozenset(int(each) for each in _used(labels) if each >= 0)


def _told(classes: Classes, labels: Labels, unknown: list[str], first: str) -> str:
    known = classes.names or sorted(classes.numbers)
    hint = nearest(unknown[0], map(str, known))
    return (
        f"{labels.where}: {len(unknown)} of its classes are not among those of TRAIN "
        f"({classes.where}): {listing(unknown, 8)}. {hint}".rstrip()
        + f"\n  The first sample of class {unknown[0]!r} is {first}."
        + f"\n  TRAIN has: {listing(map(str, known), 12)}."
    )
