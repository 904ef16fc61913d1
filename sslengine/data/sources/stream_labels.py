"""The labels of a stream, one sample at a time: its classes are known before it is read.

CLASSES says them, or how many there are; a Hugging Face dataset with class labels has their names.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from sslengine.errors import DataError, nearest, readable

_WHOLE = re.compile(r"\d{1,9}(\.0*)?")


class StreamClasses:
    def __init__(self, given: Any, where: str, names: Sequence[str] = ()) -> None:
        """given: the value of CLASSES. where: the split. names: those that the data has."""
        self._where = where
        self.names = tuple(map(str, given)) if isinstance(given, list) else tuple(names)
        self.count = len(self.names) or (given if isinstance(given, int) else 0)
        self._number = {name: number for number, name in enumerate(self.names)}
        if not self.count:
            raise DataError(
                f"{where}.CLASSES: the labels of a stream are asked for, and which classes there "
                f"are is not known before it is read. Give their names in the order of their "
                f"numbers, CLASSES: [bird, cat], or how many there are."
            )

    def number(self, label: Any, sample: str) -> int:
        """Of a name or a whole number. sample: what to call it in a message."""
        text = str(label).strip()
        if text in self._number:
            return self._number[text]
        if label is not None and _WHOLE.fullmatch(text) and int(float(text)) < self.count:
            return int(float(text))
        what = "has no label" if label is None else f"has the label {readable(text)[:80]!r}"
        expected = f"a number below {self.count}"
        if self.names:
            expected = f"one of its {self.count} classes. {nearest(text, self.names)}".rstrip()
        raise DataError(f"{self._where}.CLASSES: {readable(sample)} {what}; expected {expected}")
