"""Arrays that all processes of a machine read from one place in memory.

What a dataset keeps for each of its samples (paths, labels, the rows of a subset) goes to every
loader worker. As plain arrays each would get a copy, and ten million samples would take
gigabytes. A SharedArray goes to another process as a reference to an open file: a nameless one
in memory, which the kernel frees with the last process that uses it, or one on a disk. Whoever
sends it keeps it until it has arrived, as a dataset does that has loader workers.
"""

from __future__ import annotations

import os
import weakref
from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

# A smaller array is pickled: an open file costs more.
BY_VALUE = 2**12


class _OpenFile:
    """A file that is open as long as this lives."""

    def __init__(self, descriptor: int, name: str) -> None:
        self.descriptor, self.name = descriptor, name
        weakref.finalize(self, os.close, descriptor)


class SharedArray:
    """A read-only array. `array` is it as numpy knows it."""

    def __init__(
        self, values: NDArray[Any], file: _OpenFile | None = None, offset: int = 0
    ) -> None:
        self.array = values
        self._file, self._offset = file, offset  # held open, so that others can open it as well

    @classmethod
    def of(cls, values: NDArray[Any]) -> SharedArray:
        """A copy of the values that can be shared; the values themselves if there are few."""
        if values.nbytes < BY_VALUE or not hasattr(os, "memfd_create"):
            return cls(values)
        file = _OpenFile(os.memfd_create("sslengine"), "a file in memory")
        with open(file.descriptor, "wb", closefd=False) as stream:
            np.ascontiguousarray(values).tofile(stream)
        return cls._of_file(file, values.dtype, values.shape)

    @classmethod
    def on_disk(
        cls, path: str | Path, dtype: DTypeLike, shape: Sequence[int], offset: int = 0
    ) -> SharedArray:
        """The values that a file holds after so many bytes."""
        file = _OpenFile(os.open(path, os.O_RDONLY), str(path))
        return cls._of_file(file, dtype, shape, offset)

    @classmethod
    def _of_file(
        cls, file: _OpenFile, dtype: DTypeLike, shape: Sequence[int], offset: int = 0
    ) -> SharedArray:
        if 0 in shape:  # nothing can be mapped
            return cls(np.zeros(tuple(shape), dtype))
        with open(file.descriptor, "rb", closefd=False) as stream:
            mapped = np.memmap(stream, dtype, "r", offset, tuple(shape))
        return cls(np.asarray(mapped), file, offset)

    def __len__(self) -> int:
        return len(self.array)

    def __reduce__(self) -> tuple[Any, ...]:
        if self._file is None:
            return SharedArray, (self.array,)
        # Also a file that has no name, or has lost it, can be opened by way of who holds it.
        held = f"/proc/{os.getpid()}/fd/{self._file.descriptor}"
        place = held if os.path.exists(held) else self._file.name
        return SharedArray.on_disk, (place, self.array.dtype.str, self.array.shape, self._offset)


class SharedStrings(Sequence[bytes]):
    """Many short strings, one after the other, and where each begins."""

    def __init__(self, text: SharedArray, starts: SharedArray) -> None:
        self._text, self._starts = text, starts

    @classmethod
    def of(cls, strings: Iterable[bytes]) -> SharedStrings:
        text, starts = joined([strings])
        return cls(SharedArray.of(text), SharedArray.of(starts))

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"{index} of {len(self)}")
        index %= len(self)
        begin, end = self._starts.array[index : index + 2]
        return self._text.array[begin:end].tobytes()


def joined(groups: Iterable[Iterable[bytes]]) -> tuple[NDArray[np.uint8], NDArray[Any]]:
    """The strings of all groups as SharedStrings keeps them. One group at a time is held."""
    text, lengths = bytearray(), array("i")
    for group in groups:
        strings = list(group)
        text += b"".join(strings)
        lengths.extend(map(len, strings))
    starts = np.zeros(len(lengths) + 1, np.uint32 if len(text) < 2**32 else np.int64)
    np.cumsum(np.frombuffer(lengths, np.int32), out=starts[1:])
    return np.frombuffer(text, np.uint8), starts
