"""Labels as a list of samples has them, text or numbers, as the numbers of classes.

A label that is a list, or text with LABEL_SEPARATOR in it, says several classes. Where one sample
has such a label all have: their labels become a matrix of indicators, a row for each sample and a
column for each class: 1 where it is named, 0 elsewhere.
"""

from __future__ import annotations

import os
import re
from array import array
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sslengine.data.manifest.index_cache import string_arrays
from sslengine.errors import DataError, readable

NO_CLASS = -1
# Of indicators: of a sample whose classes are not known.
UNKNOWN = -1
# Bytes of a matrix of indicators.
LARGEST_MATRIX = 2**34


class LabelError(DataError):
    """Labels that are no classes; whoever reads them says where they are."""


def all_known(
    labels: NDArray[np.generic], told: Callable[[NDArray[np.int64]], str]
) -> NDArray[np.generic]:
    """The labels. told: makes the message about the samples that have none."""
    missing = np.flatnonzero(_none(labels))
    if missing.size:
        raise DataError(told(missing))
    return labels


def _none(labels: NDArray[Any]) -> NDArray[np.bool_]:
    if labels.ndim == 2:
        return np.asarray((labels == UNKNOWN).all(axis=1) & bool(labels.shape[1]))
    return np.asarray(labels == NO_CLASS)


def count_classes(labels: NDArray[Any]) -> int:
    """0: there are no labels."""
    return labels.shape[1] if labels.ndim == 2 else max(0, int(labels.max(initial=-1)) + 1)


# What a table has where there is no label: a gap, pandas' NaN, VISSL's number for it.
_MISSING = re.compile(r"|nan|-1(\.0*)?", re.IGNORECASE)
_NUMBER = re.compile(r"-?\d+(\.\d*)?")
_WHOLE = re.compile(r"\d{1,9}(\.0*)?")
_INDICATORS = (0, 1, "0", "1")


class ClassNumbers:
    """Takes the labels one by one, and holds 4 bytes of each, or of each class of a list 4.

    Where all are whole numbers (`7`, `7.0`) they are the classes. Otherwise the classes are the
    different labels, in order of size if they are numbers and of name if not. A sample without a
    label has None, nothing, `nan` or -1. A list may be empty: the sample shows no class.
    """

    def __init__(self, separator: str = "") -> None:
        self._separator = separator
        self._known: dict[str, int] = {}
        self._of = array("i")
        # How many classes each sample has; None as long as each has one.
        self._counts: array[int] | None = array("i") if separator else None

    def add(self, label: Any) -> None:
        """None: the sample has no label."""
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
        if len(set(numbers)) < len(numbers) and all(each in _INDICATORS for each in labels):
            raise LabelError(
                f"sample {len(self._counts) + 1} has the label {readable(str(labels))[:80]}. A "
                f"list names classes. Indicators, a 0 or 1 for each class, are read from a .npy "
                f"file: LABEL_SOURCES [disk_filelist] with LABEL_PATHS."
            )
        self._of.extend(numbers)
        self._counts.append(len(numbers))

    def _number(self, label: Any) -> int:
        """In the order of arrival."""
        if label is None:
            return NO_CLASS
        label = os.fsdecode(label) if isinstance(label, bytes) else label
        text = (label if isinstance(label, str) else str(label)).strip()
        return NO_CLASS if _MISSING.fullmatch(text) else self._known.setdefault(
            text, len(self._known)
        )  # fmt: skip

    def arrays(self, names: Iterable[str] = ()) -> dict[str, NDArray[Any]]:
        """`labels`, and the names of the `classes` if they are not numbers."""
        labels, classes = self.numbered(names)
        return {"labels": labels, **string_arrays("classes", map(os.fsencode, classes))}

    def numbered(self, names: Iterable[str] = ()) -> tuple[NDArray[Any], list[str]]:
        """names: what the numbers that there are stand for, if that is known."""
        table, classes = self._table()
        classes = list(names) or classes
        numbers = table[np.frombuffer(self._of, np.int32)]
        if self._counts is None:
            return numbers, classes
        width = max(len(classes), int(np.max(numbers, initial=-1)) + 1)
        return _indicators(numbers, np.frombuffer(self._counts, np.int32), width), classes

    def _table(self) -> tuple[NDArray[np.int32], list[str]]:
        """The class of each number of arrival."""
        names = list(self._known)
        classes: list[str] = []
        if all(map(_WHOLE.fullmatch, names)):
            numbers = [int(float(name)) for name in names]
        else:
            classes = sorted(names, key=float if all(map(_NUMBER.fullmatch, names)) else None)
            place = {name: number for number, name in enumerate(classes)}
            numbers = [place[name] for name in names]
        return np.array([*numbers, NO_CLASS], np.int32), classes  # -1 is the last


def _indicators(
    numbers: NDArray[np.int32], counts: NDArray[np.int32], width: int
) -> NDArray[np.int8]:
    if len(counts) * width > LARGEST_MATRIX:
        raise LabelError(
            f"{len(counts):,} samples of {width:,} classes make a matrix of "
            f"{len(counts) * width / 2**30:.0f} GiB; {LARGEST_MATRIX // 2**30} are the most."
        )
    rows = np.repeat(np.arange(len(counts)), counts)
    known = numbers != NO_CLASS
    matrix = np.zeros((len(counts), width), np.int8)
    matrix[rows[known], numbers[known]] = 1
    matrix[rows[~known]] = UNKNOWN
    return matrix


def numbered_names(
    labels: Iterable[str | bytes | None], where: str
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """The number of each label, and the names of the classes if they are not numbers."""
    numbers = ClassNumbers()
    for label in labels:
        numbers.add(label)
    found, classes = numbers.numbered()
    missing = np.flatnonzero(found == NO_CLASS)
    if missing.size:
        raise DataError(
            f"{where}: {missing.size} of {len(found)} labels are missing (empty, nan, None or -1), "
            f"the first in row {int(missing[0]) + 1}. Leave such samples out, or label them."
        )
    return found.astype(np.int64), tuple(classes)
