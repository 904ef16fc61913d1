"""The paths of many files: what those of a folder have in common once, and of each file the rest.

Ten million paths of 60 bytes, in folders of a thousand numbered files, take 90 MB, not 640.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import groupby, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sslengine.data.manifest.shared import SharedArray, SharedStrings, joined

# So many names at a time are looked at as strings of Python, and shortened if there are so many:
# what they have in common is kept next to them, and must be smaller than what they lose.
AT_ONCE, WORTH_SHORTENING = 2**16, 16


class SharedPaths(Sequence[bytes]):
    def __init__(
        self, names: SharedStrings, begins: SharedStrings, ends: SharedStrings, kind_of: SharedArray
    ) -> None:
        """kind_of: for each file, the number of its beginning (the folder with the slash, and
        maybe more) and of its end."""
        self._names, self._begins, self._ends, self._kind_of = names, begins, ends, kind_of

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        name = self._names[index]
        kind = int(self._kind_of.array[index])
        return self._begins[kind] + name + self._ends[kind]


def path_arrays(groups: Iterable[tuple[bytes, Iterable[bytes]]]) -> dict[str, NDArray[Any]]:
    """What SharedPaths needs, from folders (with the slash) and the names of files in each.

    A folder may come again.
    """
    numbers: dict[tuple[bytes, bytes], int] = {}
    kind_of = array("i")

    def shortened() -> Iterable[list[bytes]]:
        for folder, inside in groups:
            rest = iter(inside)
            while names := list(islice(rest, AT_ONCE)):
                begin, end, names = _cut(names)
                kind = numbers.setdefault((folder + begin, end), len(numbers))
                kind_of.extend([kind] * len(names))
                yield names

    text, starts = joined(shortened())
    begins, begin_starts = joined([[begin for begin, _ in numbers]])
    ends, end_starts = joined([[end for _, end in numbers]])
    return {
        "names": text,
        "names_starts": starts,
        "begins": begins,
        "begins_starts": begin_starts,
        "ends": ends,
        "ends_starts": end_starts,
        "kind_of": np.frombuffer(kind_of, np.int32).astype(np.min_scalar_type(len(numbers))),
    }


def _cut(names: list[bytes]) -> tuple[bytes, bytes, list[bytes]]:
    """What all of them begin with, what all end with, and the rest of each."""
    if len(names) < WORTH_SHORTENING:
        return b"", b"", names
    begin = _beginning(names)
    rests = [name[len(begin) :] for name in names]
    end = _beginning([rest[::-1] for rest in rests])[::-1]
    return begin, end, [rest[: len(rest) - len(end)] for rest in rests]


def _beginning(strings: list[bytes]) -> bytes:
    """What the least and the greatest begin with, and so all between them."""
    least, greatest = min(strings), max(strings)
    for length, (one, other) in enumerate(zip(least, greatest)):
        if one != other:
            return least[:length]
    return least


def by_folder(paths: Iterable[bytes]) -> Iterable[tuple[bytes, Iterable[bytes]]]:
    """Paths in any order as the groups of `path_arrays`."""
    cut = (path.rpartition(b"/") for path in paths)
    for folder, group in groupby(cut, key=lambda parts: parts[0] + parts[1]):
        yield folder, (name for _, _, name in group)
