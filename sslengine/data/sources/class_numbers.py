"""Labels as a list of samples has them, text or numbers, as the numbers of classes."""

from __future__ import annotations

import os
import re
from array import array
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sslengine.data.manifest.index_cache import string_arrays
from sslengine.errors import DataError

NO_CLASS = -1


def all_known(
    labels: NDArray[np.generic], told: Callable[[NDArray[np.int64]], str]
) -> NDArray[np.generic]:
    """The labels. told: what to say of the samples that have none."""
    missing = np.flatnonzero(labels == NO_CLASS)
    if missing.size:
        raise DataError(told(missing))
    return labels


# What a table has where there is no label: a gap, pandas' NaN, VISSL's number for it.
_MISSING = re.compile(r"|nan|-1(\.0*)?", re.IGNORECASE)
_NUMBER = re.compile(r"-?\d+(\.\d*)?")
_WHOLE = re.compile(r"\d{1,9}(\.0*)?")


class ClassNumbers:
    """Takes the labels one by one, and holds 4 bytes of each.

    Where all are whole numbers (`7`, `7.0`) they are the classes. Otherwise the classes are the
    different labels, in order of size if they are numbers and of name if not. A sample without a
    label has None, nothing, `nan` or -1.
    """

    def __init__(self) -> None:
        self._known: dict[str, int] = {}
        self._of = array("i")

    def add(self, label: Any) -> None:
        """None: the sample has no label."""
        if label is None:
            self._of.append(NO_CLASS)
            return
        text = (label if isinstance(label, str) else str(label)).strip()
        missing = _MISSING.fullmatch(text)
        self._of.append(NO_CLASS if missing else self._known.setdefault(text, len(self._known)))

    def arrays(self) -> dict[str, NDArray[Any]]:
        """`labels`, and the names of the `classes` if they are not numbers."""
        labels, classes = self.numbered()
        return {"labels": labels, **string_arrays("classes", map(os.fsencode, classes))}

    def numbered(self) -> tuple[NDArray[np.int32], list[str]]:
        names = list(self._known)
        classes: list[str] = []
        if all(map(_WHOLE.fullmatch, names)):
            numbers = [int(float(name)) for name in names]
        else:
            classes = sorted(names, key=float if all(map(_NUMBER.fullmatch, names)) else None)
            place = {name: number for number, name in enumerate(classes)}
            numbers = [place[name] for name in names]
        table = np.array([*numbers, NO_CLASS], np.int32)  # -1 is the last
        return table[np.frombuffer(self._of, np.int32)], classes


def numbered_names(
    labels: Iterable[str | bytes | None], where: str
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """The number of each label, and the names of the classes if they are not numbers."""
    numbers = ClassNumbers()
    for label in labels:
        numbers.add(os.fsdecode(label) if isinstance(label, bytes) else label)
    found, classes = numbers.numbered()
    missing = np.flatnonzero(found == NO_CLASS)
    if missing.size:
        raise DataError(
            f"{where}: {missing.size} of {len(found)} labels are missing (empty, nan, None or -1), "
            f"the first in row {int(missing[0]) + 1}. Leave such samples out, or label them."
        )
    return found.astype(np.int64), tuple(classes)
