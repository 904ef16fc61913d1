"""The classes of a run: TRAIN's, in whose numbers the labels of every other split are.

Each source numbers its labels by itself: folders, names in a table or a file in order of name;
labels that are numbers stay what they are. `in_numbers_of` gives those of another split the
numbers that TRAIN has, by name. A class that TRAIN lacks is an error; TRAIN may have more.
"""

from __future__ import annotations

from collections.abc import Callable
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
    # Of the classes, by number; (): labels are numbers, and stand for themselves.
    names: tuple[str, ...] = ()
    # Where they come from, for messages.
    where: str = ""


@dataclass(frozen=True)
class Classes:
    """Those of one label column of TRAIN: by name, or the numbers that there are."""

    names: tuple[str, ...] = ()
    numbers: frozenset[int] = field(default_factory=frozenset)
    where: str = ""

    @classmethod
    def of(cls, labels: Labels) -> Classes:
        numbers = frozenset() if labels.names else _numbers_in(labels.column)
        return cls(labels.names, numbers, labels.where)

    @property
    def by_value(self) -> dict[str, int]:
        """The number of each class by its name; numbers are named as they are written."""
        if self.names:
            return {_plain(name): number for number, name in enumerate(self.names)}
        return {str(number): number for number in self.numbers}


def in_numbers_of(classes: Classes, labels: Labels, sample: Callable[[int], str]) -> Column:
    """The labels of another split. sample: what to call one, for a message."""
    if labels.column.ndim != 1 or not (classes.names or classes.numbers):
        return labels.column
    if classes.names and labels.names == classes.names:
        return labels.column
    used = np.unique(labels.column)
    values = [_value(labels, int(number)) for number in used]
    if classes.names and not labels.names and not all(map(str.isdecimal, classes.by_value)):
        known = {str(number): number for number in range(len(classes.names))}
    else:
        known = classes.by_value
    unknown = [value for value in values if value not in known and value != _UNLABELLED]
    if unknown:
        number = used[values.index(unknown[0])]
        first = sample(int(np.flatnonzero(labels.column == number)[0]))
        raise DataError(_told(classes, labels, unknown, first))
    table = np.array([known.get(value, -1) for value in values], labels.column.dtype)
    moved: Column = table[np.searchsorted(used, labels.column)]
    return moved


# Numbers may say that a sample has no label: the supervised loss leaves it out.
_UNLABELLED = "-1"


def _value(labels: Labels, number: int) -> str:
    return _plain(labels.names[number]) if labels.names else str(number)


def _plain(name: str) -> str:
    """`007` and `7` are one number."""
    return str(int(name)) if name.isdecimal() else name


def _numbers_in(column: Column) -> frozenset[int]:
    if column.ndim != 1:
        return frozenset()
    return frozenset(int(each) for each in np.unique(column) if each >= 0)


def _told(classes: Classes, labels: Labels, unknown: list[str], first: str) -> str:
    known = classes.names or sorted(classes.numbers)
    hint = nearest(unknown[0], map(str, known))
    return (
        f"{labels.where}: {len(unknown)} of its classes are not among those of TRAIN "
        f"({classes.where}): {listing(unknown, 8)}. {hint}".rstrip()
        + f"\n  The first sample of class {unknown[0]!r} is {first}."
        + f"\n  TRAIN has: {listing(map(str, known), 12)}."
    )
