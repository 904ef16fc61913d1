"""Labels as a list of samples has them, text or numbers, as the numbers of classes."""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sslengine.data.index_cache import string_arrays
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


class ClassNumbers:
    """Takes the labels one by one, and holds 4 bytes of each.

    Where all are whole numbers they are the classes; otherwise the classes are the different
    labels in order of name.
    """

    def __init__(self) -> None:
        self._known: dict[str, int] = {}
        self._of = array("i")

    def add(self, label: Any) -> None:
        """None: the sample has no label."""
        if label is None:
            self._of.append(NO_CLASS)
            return
        text = label if isinstance(label, str) else str(label)
        self._of.append(self._known.setdefault(text.strip(), len(self._known)))

    def arrays(self) -> dict[str, NDArray[Any]]:
        """`labels`, and the names of the `classes` if they are not numbers."""
        names = list(self._known)
        if all(name.isdecimal() and len(name) < 10 for name in names):
            numbers, classes = [int(name) for name in names], []
        else:
            classes = sorted(names)
            place = {name: number for number, name in enumerate(classes)}
            numbers = [place[name] for name in names]
        table = np.array([*numbers, NO_CLASS], np.int32)  # -1 is the last
        labels = table[np.frombuffer(self._of, np.int32)]
        return {"labels": labels, **string_arrays("classes", map(os.fsencode, classes))}
