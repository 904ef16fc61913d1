"""LABEL_COLUMNS: labels in several columns of a table, one for each class.

A cell is 1, 0, or unknown: empty, `nan`, None or -1 (in CheXpert: uncertain).
Losses and metrics ignore unknown indicators.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sslengine.data.manifest.index_cache import string_arrays
from sslengine.data.sources.class_numbers import UNKNOWN, LabelError
from sslengine.errors import readable

_INDICATORS = {
    **dict.fromkeys(("1", "1.0", "true"), 1),
    **dict.fromkeys(("0", "0.0", "false"), 0),
    **dict.fromkeys(("", "nan", "none", "-1", "-1.0"), UNKNOWN),
}


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

    def arrays(self) -> dict[str, NDArray[Any]]:
        """`labels`, images x classes, and the names of the `classes`."""
        labels = np.frombuffer(self._indicators, np.int8).reshape(-1, len(self._names))
        return {"labels": labels, **string_arrays("classes", map(os.fsencode, self._names))}
